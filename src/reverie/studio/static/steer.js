import { html } from "./vendor/preact.js"; export function Steer() { return html`<h1>Steer</h1>`; }
