// What happens in the browser alone: the title of the window, the list of runs, and keys.

window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.meshscope = {
  setTitle(title) {
    document.title = title || "meshscope";
  },

  // A stage's bar opens the terms of that stage.
  openTerms(click) {
    const stage = click?.points?.[0]?.customdata;
    const terms = document.getElementById(`memory-terms-${stage}`);
    if (terms) {
      terms.open = true;
      terms.scrollIntoView({ block: "nearest" });
    }
    return stage ?? null;
  },
};

window.dashAgGridFunctions = window.dashAgGridFunctions || {};

// Whether a row holds all that was asked for. Words are found anywhere ("slow" in "dp-slow"), a
// number only as a whole (5 is not in 65%), and a number after a word belongs to it: "rank 5" is
// in "Rank 5 takes" and in "Ranks 3 and 5", not in "rank 0, against its 5 peers".
window.dashAgGridFunctions.matchesWords = function (parts, row) {
  const asked = parts.join(" ").toUpperCase();
  const text = row.toUpperCase();
  const literal = (word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const whole = (number) => `(?<!\\d|\\d\\.)${number}(?!\\d|\\.\\d)`;
  const phrases = asked.match(/[A-Z]+\s+\d+(?!\S)|\S+/g) || [];
  return phrases.every((phrase) => {
    const [word, number] = phrase.split(/\s+/);
    if (number !== undefined) {
      const noun = word.replace(/S$/, "");
      const others = "(?:\\d+(?:,\\s+|\\s+AND\\s+))*";
      return new RegExp(`\\b${noun}S?\\s+${others}${whole(number)}`).test(text);
    }
    return new RegExp(/^\d+$/.test(word) ? whole(word) : literal(word)).test(text);
  });
};

// The focus of the grid stands on cells, not on the links in them.
window.dashAgGridFunctions.openOnEnter = function (params) {
  if (params.event.key === "Enter") {
    params.event.target.closest(".ag-row").querySelector("a")?.click();
  }
};

// What is worse comes later, as with numbers.
window.dashAgGridFunctions.bySeverity = function (one, other) {
  const order = ["analysing", "none", "info", "warning", "critical", "unreadable"];
  return order.indexOf(one) - order.indexOf(other);
};

// Keys of the timeline, those of Perfetto where it has them.
(function () {
  const SETTLE_MS = 120;
  const LEAST_MS = 1e-5;
  const NS_PER_MS = 1e6;
  const KEYS = [
    ["w, s", "zoom in, out"],
    ["a, d", "to the left, right"],
    ["f", "whole step"],
    ["[, ]", "previous, next step"],
    ["/", "name a rank"],
    ["?", "this list"],
  ];
  const MOVES = {
    w: (t0, t1) => [t0 + (t1 - t0) / 4, t1 - (t1 - t0) / 4],
    s: (t0, t1) => [t0 - (t1 - t0) / 2, t1 + (t1 - t0) / 2],
    a: (t0, t1) => [t0 - (t1 - t0) / 4, t1 - (t1 - t0) / 4],
    d: (t0, t1) => [t0 + (t1 - t0) / 4, t1 + (t1 - t0) / 4],
    // Not by its button: a figure that is drawn anew meanwhile would take the click with it.
    f: () => [0, Number.MAX_VALUE],
  };
  const BUTTONS = { "[": "timeline-previous", "]": "timeline-next" };
  let wanted = null;
  let timer = null;

  const figure = () => document.querySelector("#timeline-graph .js-plotly-plot");

  // A window of the same width inside the step; wider than the step is the step.
  function inside([t0, t1], length) {
    const width = Math.min(Math.max(t1 - t0, LEAST_MS), length);
    const begin = Math.min(Math.max(t0, 0), length - width);
    return [begin, begin + width];
  }

  // The address is the state: a figure may be drawn anew while a key is pressed.
  function move(change) {
    const length = figure()?.layout?.meta?.length_ms;
    if (!length) return;
    const query = new URLSearchParams(window.location.search);
    const asked = (name, otherwise) => (query.has(name) ? Number(query.get(name)) / NS_PER_MS : otherwise);
    wanted = inside(change(...(wanted || [asked("t0", 0), asked("t1", length)])), length);
    window.clearTimeout(timer);
    timer = window.setTimeout(() => {
      const [t0, t1] = wanted;
      wanted = null;
      const places = { t0: Math.round(t0 * NS_PER_MS), t1: Math.round(t1 * NS_PER_MS) };
      const isWhole = t1 - t0 >= length;
      for (const [name, ns] of Object.entries(places)) {
        if (isWhole) query.delete(name);
        else query.set(name, ns);
      }
      const words = query.toString();
      window.dash_clientside.set_props("timeline-url", { search: words ? `?${words}` : "" });
    }, SETTLE_MS);
  }

  function press(button) {
    // What was asked for before must not come after it.
    window.clearTimeout(timer);
    wanted = null;
    document.getElementById(button)?.click();
  }

  function help() {
    const open = document.getElementById("ms-keys-help");
    if (open) return open.remove();
    const list = document.createElement("dl");
    list.id = "ms-keys-help";
    list.className = "ms-keys-help";
    list.setAttribute("role", "note");
    for (const [keys, words] of KEYS) {
      for (const [tag, text] of [["dt", keys], ["dd", words]]) {
        list.appendChild(document.createElement(tag)).textContent = text;
      }
    }
    document.getElementById("timeline-content").prepend(list);
  }

  document.addEventListener("keydown", (event) => {
    const isTyping = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (!document.getElementById("timeline-content")) return;
    if (MOVES[event.key]) move(MOVES[event.key]);
    else if (BUTTONS[event.key]) press(BUTTONS[event.key]);
    else if (event.key === "/") document.getElementById("timeline-rank")?.focus();
    else if (event.key === "?") help();
    else return;
    event.preventDefault();
  });

  document.addEventListener("click", (event) => {
    if (event.target.closest?.("#timeline-keys")) help();
  });
})();

// A server or tunnel that is gone is told, and looked for until it answers: the address has the
// whole view, so that a reload then shows what was asked for.
(function () {
  const LOOK_MS = 2000;
  const ask = window.fetch.bind(window);
  let looking = false;

  function tell() {
    const banner = document.createElement("div");
    banner.id = "ms-gone";
    banner.className = "ms-gone";
    banner.setAttribute("role", "alert");
    banner.textContent =
      "The server does not answer: this page is old. It reloads by itself as soon as the server is back.";
    document.body.prepend(banner);
  }

  function look() {
    ask(window.location.href, { method: "HEAD", cache: "no-store" })
      .then((answer) => {
        if (answer.status >= 500) throw new Error("a proxy answers for it");
        window.location.reload();
      })
      .catch(() => window.setTimeout(look, LOOK_MS));
  }

  function lost() {
    if (looking) return;
    looking = true;
    tell();
    window.setTimeout(look, LOOK_MS);
  }

  window.fetch = function (...request) {
    return ask(...request).then(
      (answer) => {
        if (answer.status >= 502 && answer.status <= 504) lost();
        return answer;
      },
      (error) => {
        // A request that the page itself called off says nothing of the server.
        if (error.name !== "AbortError") lost();
        throw error;
      },
    );
  };
})();
