// Where the reader is and what is chosen: all of it stands in the address, so that a reload or a bookmark brings it back.
import { useEffect, useState } from "./vendor/preact.js";

export function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "runs", arg = ""] = path.split("/").map(decodeURIComponent);
  return { page: page || "runs", arg, query: Object.fromEntries(new URLSearchParams(query)) };
}

export function address(page, arg = "", query = {}) {
  const kept = Object.entries(query).filter(([, v]) => v !== "" && v !== null && v !== undefined);
  const words = new URLSearchParams(kept).toString();
  return `#/${page}${arg ? `/${encodeURIComponent(arg)}` : ""}${words ? `?${words}` : ""}`;
}

export function go(page, arg, query) {
  location.hash = address(page, arg, query);
}

/** Change what is chosen on this page without a new entry in the history. */
export function choose(change) {
  const here = route();
  history.replaceState(null, "", address(here.page, here.arg, { ...here.query, ...change }));
  dispatchEvent(new Event("chosen"));
}

export function useRoute() {
  const [now, set] = useState(route());
  useEffect(() => {
    const look = () => set(route());
    addEventListener("hashchange", look);
    addEventListener("chosen", look);
    return () => {
      removeEventListener("hashchange", look);
      removeEventListener("chosen", look);
    };
  }, []);
  return now;
}

/** A value that outlives the page, and is the same wherever it is used. */
export function useKept(name, first) {
  const read = () => {
    try {
      return JSON.parse(localStorage.getItem(name)) ?? first;
    } catch {
      return first;
    }
  };
  const [value, set] = useState(read);
  useEffect(() => {
    const look = () => set(read());
    addEventListener(`kept ${name}`, look);
    return () => removeEventListener(`kept ${name}`, look);
  }, []);
  const keep = (next) => {
    try {
      localStorage.setItem(name, JSON.stringify(next));
    } catch {
      // there is no room for more
    }
    dispatchEvent(new Event(`kept ${name}`));
  };
  return [value, keep];
}
