// Talking to the server: JSON in and out, and work whose events come as they happen.

export class Refused extends Error {}

async function answered(response) {
  if (response.ok) return response.json();
  let message = `the studio answered ${response.status}`;
  try {
    message = (await response.clone().json()).message || message;
  } catch {
    message = (await response.text()).trim() || message;
  }
  throw new Refused(message);
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("the studio cannot be reached; is `reverie studio` still running?");
  }
}

export const get = async (path) => answered(await reach(path, { headers: { accept: "application/json" } }));

const told = (body, signal) => ({
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify(body),
  signal,
});

export const post = async (path, body = {}) => answered(await reach(path, told(body)));

/** Ask for work and return {done, cancel}; `on` has a function for each kind of event. Leaving out what is empty. */
export function work(verb, wish, on = {}) {
  const control = new AbortController();
  const kept = Object.fromEntries(Object.entries(wish).filter(([, v]) => v !== "" && v !== null && v !== undefined));
  return { done: follow(verb, kept, on, control.signal), cancel: () => control.abort() };
}

async function follow(verb, wish, on, signal) {
  const response = await reach(`/api/work/${verb}`, told(wish, signal));
  if (!response.ok) return answered(response);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refused("the studio broke this off");
    text += decoder.decode(value, { stream: true });
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = parsed(text.slice(0, end));
      text = text.slice(end + 2);
      if (!event) continue;
      if (event.name === "done") return event.data;
      if (event.name === "failed") throw new Refused(event.data.message);
      if (on[event.name]) on[event.name](event.data);
    }
  }
}

function parsed(block) {
  let name = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return data.length ? { name, data: JSON.parse(data.join("\n")) } : null;
}

/** Watch a run; returns what ends the watching. */
export function watch(id, tell) {
  const source = new EventSource(`/api/runs/${id}/watch`);
  source.addEventListener("run", (event) => {
    const run = JSON.parse(event.data);
    tell(run);
    if (!run.training && run.queued === null) source.close();
  });
  source.addEventListener("failed", () => source.close());
  return () => source.close();
}

export function floats(packed) {
  const bytes = Uint8Array.from(atob(packed.float32), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

export function picture(address) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => resolve(image);
    image.onerror = () => reject(new Refused("a picture could not be shown"));
    image.src = address;
  });
}
