// The gateway's API: streamed answers, and errors with the server's own sentence.

export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export async function call(path, key, request = {}) {
  const headers = { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
  const response = await fetch(path, { ...request, headers }).catch((error) => {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The gateway can't be reached. Is it running?");
  });
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new Refusal(response.status, body?.error?.message ?? `The gateway answered with status ${response.status}.`);
}

// The events of a chat completion, in order; ends after [DONE].
export async function* stream(body, key, signal) {
  const asked = { ...body, stream: true, stream_options: { include_usage: true } };
  const response = await call("v1/chat/completions", key, { method: "POST", body: JSON.stringify(asked), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : brokenOff();
    });
    if (done) throw brokenOff();
    const events = (pending + value).split("\n\n");
    pending = events.pop();
    for (const data of events.map((event) => event.replace(/^data: ?/, ""))) {
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(200, event.error.message);
      yield event;
    }
  }
}

const brokenOff = () => new Refusal(200, "The connection ended before the answer did.");
