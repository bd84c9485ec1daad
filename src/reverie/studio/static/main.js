// The frame of the page: where one can go, what is chosen, light or dark.
import { html, render, useEffect, useState } from "./vendor/preact.js";
import { get } from "./net.js";
import { Problem } from "./parts.js";
import { address, route, useRoute } from "./state.js";
import { Compare } from "./compare.js";
import { Data } from "./data.js";
import { Draw } from "./draw.js";
import { Formulas } from "./formulas.js";
import { Points } from "./points.js";
import { RunPage } from "./run.js";
import { Runs } from "./runs.js";
import { Steer } from "./steer.js";
import { Train } from "./train.js";

const PLACES = [["runs", "Runs"], ["draw", "Draw"], ["steer", "Steer"], ["points", "Points"], ["formulas", "Formulas"], ["data", "Data"]];
const PAGES = { runs: Runs, run: RunPage, train: Train, draw: Draw, steer: Steer, points: Points, formulas: Formulas, data: Data, compare: Compare };
const OF = { run: "runs", train: "runs", compare: "runs" };

function Theme() {
  const [dark, set] = useState(document.documentElement.dataset.theme === "dark");
  const turn = () => {
    const next = dark ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("theme", next);
    set(!dark);
    dispatchEvent(new Event("recoloured"));
  };
  return html`<button type="button" class="quiet theme" onClick=${turn} aria-pressed=${dark}
    aria-label=${dark ? "Light colours" : "Dark colours"}>${dark ? "☀" : "☾"}</button>`;
}

function App() {
  const here = useRoute();
  const [studio, setStudio] = useState(null);
  const [runs, setRuns] = useState(null);
  const [problem, setProblem] = useState("");
  const refresh = () => get("/api/runs").then((found) => (setRuns(found), setProblem("")), (e) => setProblem(e.message));
  useEffect(() => {
    get("/api/studio").then(setStudio, (e) => setProblem(e.message));
    refresh();
    const look = () => document.hidden || refresh();
    let ticks = 0; // the list itself is looked at often, elsewhere seldom
    const timer = setInterval(() => (route().page === "runs" || ++ticks % 6 === 0) && look(), 5000);
    document.addEventListener("visibilitychange", look);
    return () => (clearInterval(timer), document.removeEventListener("visibilitychange", look));
  }, []);
  const Page = PAGES[here.page] || Runs;
  const run = here.query.run || (here.page === "run" ? here.arg : "");
  const title = (PLACES.find(([p]) => p === (OF[here.page] || here.page)) || PLACES[0])[1];
  useEffect(() => {
    document.title = `${title} · Reverie studio`;
  }, [title]);
  return html`
    <a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), document.getElementById("main").focus())}>To the content</a>
    <header class="top">
      <a class="brand" href="#/runs">Reverie</a>
      <nav aria-label="Pages">
        ${PLACES.map(([page, text]) => html`<a href=${address(page, "", run && page !== "runs" && page !== "data" ? { run } : {})}
          aria-current=${(OF[here.page] || here.page) === page ? "page" : undefined}>${text}</a>`)}
      </nav>
      <${Theme} />
    </header>
    <main id="main" tabindex="-1">
      <${Problem} message=${problem} />
      ${studio && runs ? html`<${Page} key=${here.page} here=${here} studio=${studio} runs=${runs} refresh=${refresh} />`
        : !problem && html`<p class="loading">Loading …</p>`}
    </main>
    <footer class="soft">Everything here happens on this machine${studio ? html`, in <span class="path">${studio.folder}</span>` : ""}.</footer>`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
