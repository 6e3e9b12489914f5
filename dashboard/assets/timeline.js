// Keys and pointer of the timeline, those of Perfetto where it has them.
(function () {
  const SETTLE_MS = 120;
  const LEAST_MS = 1e-5;
  const NS_PER_MS = 1e6;
  const WHEEL = 1.25;
  const STILL_PX = 3;
  const REST_MS = 90;
  const KEYS = [
    ["w, s", "zoom in, out"],
    ["a, d", "to the left, right"],
    ["f", "whole step"],
    ["[, ]", "previous, next step"],
    ["/", "name a rank"],
    ["Ctrl and wheel", "zoom at the pointer"],
    ["Shift and drag", "move"],
    ["click", "what it is, and whom it waited for"],
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

  // The row and the time under the pointer; nothing outside the plot.
  function placeOf(event) {
    const shown = figure();
    const area = shown?.querySelector(".nsewdrag")?.getBoundingClientRect();
    const axes = shown?._fullLayout;
    if (!area || !axes?.xaxis?.p2d) return null;
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    if (x < 0 || y < 0 || x > area.width || y > area.height) return null;
    const row = Math.round(axes.yaxis.p2d(y));
    return { row, at: Math.round(axes.xaxis.p2d(x) * NS_PER_MS) };
  }

  // A wheel alone scrolls the page.
  document.addEventListener(
    "wheel",
    (event) => {
      const place = event.ctrlKey && event.target.closest?.("#timeline-graph") && placeOf(event);
      if (!place) return;
      event.preventDefault();
      const at = place.at / NS_PER_MS;
      const factor = event.deltaY < 0 ? 1 / WHEEL : WHEEL;
      move((t0, t1) => [at - (at - t0) * factor, at + (t1 - at) * factor]);
    },
    { passive: false },
  );

  let pressed = null;
  document.addEventListener(
    "mousedown",
    (event) => {
      const inside = event.button === 0 && event.target.closest?.("#timeline-graph");
      pressed = inside ? [event.clientX, event.clientY] : null;
    },
    true,
  );
  document.addEventListener(
    "mouseup",
    (event) => {
      const from = pressed;
      pressed = null;
      if (!from || Math.hypot(event.clientX - from[0], event.clientY - from[1]) > STILL_PX) return;
      const place = placeOf(event);
      if (place) window.dash_clientside.set_props("timeline-at", { data: place });
    },
    true,
  );

  // A picture has no names of its own: what is under the pointer is asked of the server.
  let resting = null;
  let asking = null;
  const tip = () => document.getElementById("ms-tip");

  function forget() {
    window.clearTimeout(resting);
    asking?.abort();
    tip()?.remove();
  }

  function show(told, event) {
    tip()?.remove();
    if (!told.sentences?.length) return;
    const box = document.createElement("div");
    box.id = "ms-tip";
    box.className = "ms-tip";
    for (const text of [told.place, ...told.sentences]) {
      box.appendChild(document.createElement("div")).textContent = text;
    }
    document.body.appendChild(box);
    const left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8);
    box.style.left = `${Math.max(left, 8)}px`;
    box.style.top = `${Math.max(event.clientY - box.offsetHeight - 12, 8)}px`;
  }

  // What stands still on the page no longer fits what is below it.
  document.addEventListener("scroll", forget, true);
  document.addEventListener("mousemove", (event) => {
    forget();
    if (event.buttons || !event.target.closest?.("#timeline-graph")) return;
    const meta = figure()?.layout?.meta;
    const place = meta?.is_picture && placeOf(event);
    if (!place) return;
    resting = window.setTimeout(() => {
      asking = new AbortController();
      const url = `${meta.instant_url}row=${place.row}&at=${place.at}&operation=0`;
      window
        .fetch(url, { signal: asking.signal })
        .then((answer) => (answer.ok ? answer.json() : {}))
        .then((told) => show(told, event))
        .catch(() => {});
    }, REST_MS);
  });
})();
