// The frame of the page: navigation, the selected page, and the theme.
import { html, render, useEffect, useState } from "./vendor/preact.js";
import { get } from "./client.js";
import { Problem } from "./components.js";
import { address, route, useRoute } from "./state.js";
import { Compare } from "./compare.js";
import { Data } from "./data.js";
import { Demos } from "./demos.js";
import { Points } from "./points.js";
import { RunPage } from "./run.js";
import { Runs } from "./runs.js";
import { Sample } from "./sample.js";
import { Steer } from "./steer.js";
import { Train } from "./train.js";

const TABS = [["runs", "Runs"], ["sample", "Sample"], ["steer", "Steer"], ["points", "Points"], ["demos", "Demos"], ["data", "Data"]];
const PAGES = { runs: Runs, run: RunPage, train: Train, sample: Sample, steer: Steer, points: Points, demos: Demos, data: Data, compare: Compare };
const PARENTS = { run: "runs", train: "runs", compare: "runs" };

function ThemeButton() {
  const [dark, set] = useState(document.documentElement.dataset.theme === "dark");
  const toggle = () => {
    const next = dark ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("theme", next);
    set(!dark);
    dispatchEvent(new Event("themechange"));
  };
  return html`<button type="button" class="quiet theme" onClick=${toggle} aria-pressed=${dark}
    aria-label=${dark ? "Light theme" : "Dark theme"}>${dark ? "☀" : "☾"}</button>`;
}

function App() {
  const here = useRoute();
  const [studio, setStudio] = useState(null);
  const [runs, setRuns] = useState(null);
  const [problem, setProblem] = useState("");
  const refresh = () => get("/api/runs").then((rows) => (setRuns(rows), setProblem("")), (e) => setProblem(e.message));
  useEffect(() => {
    get("/api/studio").then(setStudio, (e) => setProblem(e.message));
    refresh();
    const update = () => document.hidden || refresh();
    let ticks = 0; // every 5 s on the list of runs, every 30 s elsewhere
    const timer = setInterval(() => (route().page === "runs" || ++ticks % 6 === 0) && update(), 5000);
    document.addEventListener("visibilitychange", update);
    return () => (clearInterval(timer), document.removeEventListener("visibilitychange", update));
  }, []);
  const Page = PAGES[here.page] || Runs;
  const run = here.query.run || (here.page === "run" ? here.arg : "");
  const tab = PARENTS[here.page] || here.page;
  const title = (TABS.find(([page]) => page === tab) || TABS[0])[1];
  useEffect(() => {
    document.title = `${title} · Reverie studio`;
  }, [title]);
  return html`
    <a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), document.getElementById("main").focus())}>Skip to content</a>
    <header class="top">
      <a class="brand" href="#/runs">Reverie</a>
      <nav aria-label="Pages">
        ${TABS.map(([page, text]) => html`<a href=${address(page, "", run && page !== "runs" && page !== "data" ? { run } : {})}
          aria-current=${tab === page ? "page" : undefined}>${text}</a>`)}
      </nav>
      <${ThemeButton} />
    </header>
    <main id="main" tabindex="-1">
      <${Problem} message=${problem} />
      ${studio && runs ? html`<${Page} key=${here.page} here=${here} studio=${studio} runs=${runs} refresh=${refresh} />`
        : !problem && html`<p class="loading">Loading …</p>`}
    </main>
    <footer class="soft">All computation runs on this machine${studio ? html`, in <span class="path">${studio.folder}</span>` : ""}.</footer>`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
