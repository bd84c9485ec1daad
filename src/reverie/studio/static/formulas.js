import { html } from "./vendor/preact.js"; export function Formulas() { return html`<h1>Formulas</h1>`; }
