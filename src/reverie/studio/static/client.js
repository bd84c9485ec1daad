// Requests to the server: JSON in and out, and jobs whose events are streamed.

export class RequestError extends Error {}

async function parseResponse(response) {
  if (response.ok) return response.json();
  let message = `the studio responded with status ${response.status}`;
  try {
    message = (await response.clone().json()).message || message;
  } catch {
    message = (await response.text()).trim() || message;
  }
  throw new RequestError(message);
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError("the studio does not respond; check that `reverie studio` is still running");
  }
}

export const get = async (path) => parseResponse(await send(path, { headers: { accept: "application/json" } }));

const withBody = (body, signal) => ({
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(body),
  signal,
});

export const post = async (path, body = {}) => parseResponse(await send(path, withBody(body)));

/** Start a job and return {done, cancel}; `on` has a function for each kind of event.  Empty fields of the request are omitted. */
export function startJob(kind, request, on = {}) {
  const control = new AbortController();
  const fields = Object.fromEntries(Object.entries(request).filter(([, v]) => v !== "" && v !== null && v !== undefined));
  return { done: follow(kind, fields, on, control.signal), cancel: () => control.abort() };
}

async function follow(kind, request, on, signal) {
  const response = await send(`/api/jobs/${kind}`, withBody(request, signal));
  if (!response.ok) return parseResponse(response);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new RequestError("the studio closed the connection; try again");
    text += decoder.decode(value, { stream: true });
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = parseEvent(text.slice(0, end));
      text = text.slice(end + 2);
      if (!event) continue;
      if (event.name === "done") return event.data;
      if (event.name === "failed") throw new RequestError(event.data.message);
      if (on[event.name]) on[event.name](event.data);
    }
  }
}

function parseEvent(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) } : null;
}

/** Call a function with the details of a run whenever they change; return a function that stops it. */
export function monitor(id, onChange) {
  const source = new EventSource(`/api/runs/${id}/events`);
  source.addEventListener("run", (event) => {
    const run = JSON.parse(event.data);
    onChange(run);
    if (!run.training && run.queued === null) source.close();
  });
  source.addEventListener("failed", () => source.close());
  return () => source.close();
}

export function unpackFloats(packed) {
  const bytes = Uint8Array.from(atob(packed.float32), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

export function loadImage(url) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new RequestError("cannot show an image"));
    image.src = url;
  });
}
