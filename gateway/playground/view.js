// How a turn of the conversation looks.

const STAGES = [
  ["queue", "waiting"],
  ["decode", "picture decode"],
  ["encode", "vision encode"],
  ["prefill", "prefill"],
  ["tokens", "tokens"],
];
const NEAR = 60; // pixels from the end within which the view follows the answer

const conversation = document.getElementById("conversation");
let follows = true; // the view stays at the end: when text comes, and when pictures or options take room below

conversation.addEventListener("scroll", () => {
  follows = conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < NEAR;
});
new ResizeObserver(() => follows && scrollToEnd()).observe(conversation);

export function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Adds a turn at the end: `update` shows what has come of its answer, `finish` what it took. Where it failed, `again`
// is called to ask once more (null: not offered).
export function show(turn, again) {
  const question = element("article", { className: "turn question", ariaLabel: "You asked" });
  if (turn.pictures.length) {
    const items = turn.pictures.map((src, index) => element("li", {}, element("img", { src, alt: `Picture ${index + 1}` })));
    question.append(element("ul", { className: "pictures" }, ...items));
  }
  if (turn.question) question.append(element("p", { className: "text", textContent: turn.question }));
  const text = element("p", { className: "text" });
  const foot = element("div");
  const answer = element("article", { className: "turn answer", ariaLabel: "Answer" }, text, foot);
  conversation.append(question, answer);
  const update = () => {
    text.textContent = turn.answer;
    if (follows) scrollToEnd();
  };
  const finish = () => {
    update();
    answer.ariaBusy = "false";
    text.hidden = !turn.answer;
    foot.replaceChildren(...footOf(turn, again));
    scrollToEnd();
  };
  const start = () => {
    answer.ariaBusy = "true";
    scrollToEnd();
  };
  return { start, update, finish };
}

function scrollToEnd() {
  conversation.scrollTop = conversation.scrollHeight;
}

function footOf(turn, again) {
  const note = (textContent) => element("p", { className: "note", textContent });
  const parts = [];
  if (turn.stopped) parts.push(note("Stopped."));
  if (turn.cut) parts.push(note("Cut off: the longest answer is set under Options."));
  if (turn.error) {
    const button = element("button", { type: "button", textContent: "Try again", onclick: again });
    parts.push(element("p", { className: "error", role: "alert" }, turn.error, again ? button : ""));
  }
  if (turn.timing?.total_ms != null) parts.push(stages(turn.timing), note(figures(turn.timing, turn.usage)));
  return parts;
}

// `timing`: milliseconds by stage as the server measured them, null where a stage had no part.
function stages(timing) {
  const tokens_ms = timing.total_ms - (timing.first_token_ms ?? timing.total_ms);
  const known = STAGES.map(([stage, name]) => ({ stage, name, spent: { tokens_ms, ...timing }[`${stage}_ms`] })).filter(
    ({ spent }) => spent != null,
  );
  const label = ({ name, spent }) => `${name} ${ms(spent)}`;
  const bar = element("div", { className: "bar", role: "img", ariaLabel: `Time by stage: ${known.map(label).join(", ")}` });
  for (const { stage, spent } of known.filter(({ spent }) => spent > 0)) {
    const part = element("span", { className: stage });
    part.style.flexGrow = spent;
    bar.append(part);
  }
  const items = known.map((part) => element("li", { className: part.stage, textContent: label(part) }));
  const legend = element("ul", { className: "legend", ariaHidden: "true" }, ...items); // the bar's label says the same
  return element("div", { className: "stages" }, bar, legend);
}

function figures(timing, usage) {
  const parts = [`first token after ${ms(timing.first_token_ms)}`, `all after ${ms(timing.total_ms)}`];
  if (usage) {
    const images = usage.prompt_tokens_details?.image_tokens;
    parts.push(`${usage.prompt_tokens} tokens in${images ? `, ${images} of them pictures` : ""}; ${usage.completion_tokens} out`);
    const seconds = (timing.total_ms - timing.first_token_ms) / 1000;
    if (usage.completion_tokens > 1 && seconds > 0) parts.push(`${Math.round((usage.completion_tokens - 1) / seconds)} tokens/s`);
  }
  return parts.join(" · ");
}

function ms(value) {
  if (value == null) return "–";
  return value < 10 ? `${value.toFixed(1)} ms` : `${Math.round(value).toLocaleString("en")} ms`;
}
