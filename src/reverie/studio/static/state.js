// The state of the page is in its address, so that a reload or a bookmark restores it.
import { useEffect, useState } from "./vendor/preact.js";

// Old addresses of pages, in bookmarks and saved samples.
const RENAMED = { draw: "sample", formulas: "demos" };

export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "runs", arg = ""] = path.split("/").map(decodeURIComponent);
  return { page: RENAMED[page] || page || "runs", arg, query: Object.fromEntries(new URLSearchParams(query)) };
}

export function address(page, arg = "", query = {}) {
  const entries = Object.entries(query).filter(([, v]) => v !== "" && v !== null && v !== undefined);
  const parameters = new URLSearchParams(entries).toString();
  return `#/${page}${arg ? `/${encodeURIComponent(arg)}` : ""}${parameters ? `?${parameters}` : ""}`;
}

export function go(page, arg, query) {
  location.hash = address(page, arg, query);
}

/** Change parameters of this page without a new entry in the history. */
export function setQuery(change) {
  const here = route();
  history.replaceState(null, "", address(here.page, here.arg, { ...here.query, ...change }));
  dispatchEvent(new Event("querychange"));
}

export function useRoute() {
  const [current, set] = useState(route());
  useEffect(() => {
    const update = () => set(route());
    addEventListener("hashchange", update);
    addEventListener("querychange", update);
    return () => {
      removeEventListener("hashchange", update);
      removeEventListener("querychange", update);
    };
  }, []);
  return current;
}

/** A value in localStorage, shared by all components that use it. */
export function useStored(name, initial) {
  const read = () => {
    try {
      return JSON.parse(localStorage.getItem(name)) ?? initial;
    } catch {
      return initial;
    }
  };
  const [value, set] = useState(read);
  useEffect(() => {
    const update = () => set(read());
    addEventListener(`stored ${name}`, update);
    return () => removeEventListener(`stored ${name}`, update);
  }, []);
  const store = (next) => {
    try {
      localStorage.setItem(name, JSON.stringify(next));
    } catch {
      // the storage is full
    }
    dispatchEvent(new Event(`stored ${name}`));
  };
  return [value, store];
}
