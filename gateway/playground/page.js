// The playground: one conversation with the gateway's /v1/chat/completions. It is kept in sessionStorage, so that a
// reload keeps it and a closed tab forgets it.

import { pictureOf } from "./pictures.js";
import { Refusal, call, stream } from "./stream.js";
import { element, show } from "./view.js";

const $ = (id) => document.getElementById(id);

// A turn: {question, pictures: [data URI], answer, error, stopped, cut, timing, usage}. A turn that failed without a
// word of an answer is shown, but not sent again with later questions.
let turns = load("turns", []);
let pictures = []; // of the question that is being written: {name, url}
let adding = Promise.resolve(); // until the pictures that were dropped, pasted or chosen have been read
let running = null; // the AbortController of the answer that is coming

function load(name, otherwise) {
  try {
    return JSON.parse(sessionStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function save() {
  // The browser keeps a few megabytes: the pictures of the oldest turns go first.
  const kept = turns.map((turn) => ({ ...turn }));
  for (let oldest = 0; oldest <= kept.length; oldest++) {
    try {
      sessionStorage.setItem("turns", JSON.stringify(kept));
      return;
    } catch {
      if (oldest < kept.length) kept[oldest].pictures = [];
    }
  }
}

// --- Asking ------------------------------------------------------------------------------------------------------

// `open`: whether the last turn may offer to try again.
function redraw(open = true) {
  document.querySelectorAll(".turn").forEach((shown) => shown.remove());
  $("hint").hidden = turns.length > 0;
  for (const turn of turns) show(turn, open && turn === turns.at(-1) ? () => tryAgain(turn) : null).finish();
}

async function ask(question, urls) {
  redraw(false);
  const turn = { question, pictures: urls, answer: "" };
  turns.push(turn);
  $("hint").hidden = true;
  const shown = show(turn, () => tryAgain(turn));
  const controller = new AbortController();
  running = controller;
  shown.start();
  tellRunning(true, "Answering");
  try {
    for await (const event of stream(requestBody(), key(), controller.signal)) {
      take(turn, event);
      shown.update();
    }
  } catch (error) {
    if (error.name === "AbortError") turn.stopped = true;
    else if (error instanceof Refusal) turn.error = error.message;
    else throw error;
    if (error.status === 401) showOptions(true);
  } finally {
    shown.finish();
    save();
    if (running === controller) {
      running = null;
      tellRunning(false, turn.stopped ? "Stopped" : turn.answer);
    }
  }
}

function tryAgain(turn) {
  turns = turns.filter((other) => other !== turn);
  ask(turn.question, turn.pictures);
}

function requestBody() {
  return {
    model: $("model").textContent || "vlm",
    messages: turns.filter((turn) => turn.answer || turn === turns.at(-1)).flatMap(messagesOf),
    max_tokens: Number($("max-tokens").value) || undefined,
    temperature: $("temperature").value === "" ? undefined : Number($("temperature").value),
  };
}

function messagesOf(turn) {
  const content = turn.pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  if (turn.question) content.push({ type: "text", text: turn.question });
  const answered = turn.answer ? [{ role: "assistant", content: turn.answer }] : [];
  return [{ role: "user", content }, ...answered];
}

function take(turn, event) {
  const choice = event.choices[0];
  turn.answer += choice?.delta.content ?? "";
  if (choice?.finish_reason === "length") turn.cut = true;
  turn.timing = event.timing ?? turn.timing;
  turn.usage = event.usage ?? turn.usage;
}

function tellRunning(on, told) {
  $("ask").hidden = on;
  $("stop").hidden = !on;
  $("status").textContent = told;
  // The button that was pressed is gone. On a phone the focus would bring the keyboard up over the answer.
  if (!matchMedia("(pointer: coarse)").matches) $("question").focus();
}

const key = () => $("key").value.trim();

// --- Pictures ----------------------------------------------------------------------------------------------------

function addFiles(files) {
  adding = adding.then(() => read(files));
  return adding;
}

async function read(files) {
  $("problem").textContent = "";
  for (const file of files) {
    try {
      pictures.push({ name: file.name || "picture", url: await pictureOf(file) });
    } catch (error) {
      $("problem").textContent = error.message;
    }
    showPictures();
  }
}

function showPictures() {
  const remove = (picture) => () => {
    pictures = pictures.filter((other) => other !== picture);
    showPictures();
    $("question").focus();
  };
  const items = pictures.map((picture) => {
    const button = element("button", { type: "button", textContent: "×", onclick: remove(picture) });
    button.ariaLabel = `Remove ${picture.name}`;
    return element("li", {}, element("img", { src: picture.url, alt: picture.name, title: picture.name }), button);
  });
  $("pictures").replaceChildren(...items);
  $("status").textContent = pictures.length ? `Pictures added: ${pictures.length}` : "";
}

// --- Controls ----------------------------------------------------------------------------------------------------

function showOptions(on) {
  $("options").hidden = !on;
  $("show-options").ariaExpanded = String(on);
}

function grow() {
  $("question").style.height = "auto";
  $("question").style.height = `${$("question").scrollHeight + 2}px`;
}

async function showModel() {
  try {
    const models = await (await call("v1/models", key())).json();
    $("model").textContent = models.data[0].id;
  } catch {
    // The first question tells what is wrong.
  }
}

$("composer").addEventListener("submit", async (event) => {
  event.preventDefault();
  await adding;
  const question = $("question").value.trim();
  if (running || !(question || pictures.length)) return;
  const urls = pictures.map((picture) => picture.url);
  pictures = [];
  $("question").value = "";
  showPictures();
  grow();
  ask(question, urls);
});
$("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});
$("question").addEventListener("input", grow);
$("stop").addEventListener("click", () => running?.abort());
$("add").addEventListener("click", () => $("files").click());
$("files").addEventListener("change", async () => {
  await addFiles([...$("files").files]);
  $("files").value = "";
});
$("show-options").addEventListener("click", () => showOptions($("options").hidden));
$("new").addEventListener("click", () => {
  running?.abort();
  turns = [];
  save();
  redraw();
  $("question").focus();
});
for (const id of ["max-tokens", "temperature", "key"]) {
  $(id).value = load(id, $(id).value);
  $(id).addEventListener("change", () => {
    sessionStorage.setItem(id, JSON.stringify($(id).value));
    if (id === "key") showModel();
  });
}
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
document.addEventListener("paste", (event) => {
  const files = [...event.clipboardData.files];
  if (!files.length) return;
  event.preventDefault();
  addFiles(files);
});
let depth = 0; // dragenter and dragleave come for every element on the way
document.addEventListener("dragenter", (event) => {
  if (event.dataTransfer.types.includes("Files")) $("drop").hidden = ++depth === 0;
});
document.addEventListener("dragleave", () => ($("drop").hidden = (depth = Math.max(0, depth - 1)) === 0));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  depth = 0;
  $("drop").hidden = true;
  addFiles([...event.dataTransfer.files]);
});
window.addEventListener("pagehide", save);

redraw();
showModel();
