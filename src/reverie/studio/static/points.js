import { html } from "./vendor/preact.js"; export function Points() { return html`<h1>Points</h1>`; }
