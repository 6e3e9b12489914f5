// Keys and pointer of the timeline, those of Perfetto where it has them.
(function () {
  // The first of several keys is followed at once, those after it together.
  const SETTLE_MS = 120;
  const POLL_MS = 20;
  const LEAST_MS = 1e-5;
  const NS_PER_MS = 1e6;
  const WHEEL = 1.25;
  const STILL_PX = 3;
  const REST_MS = 90;
  // A second click within that makes them one that shows the whole step.
  const CLICK_MS = 350;
  const KEYS = [
    ["w, s", "zoom in, out"],
    ["a, d", "to the left, right"],
    ["e, q", "fewer, more ranks, around the pointer"],
    ["k, j", "to the ranks above, below"],
    ["f", "whole step, all ranks"],
    ["[, ]", "previous, next step"],
    ["/", "name a rank"],
    ["Ctrl and wheel", "zoom at the pointer"],
    ["Shift and drag", "move"],
    ["drag along names", "these ranks only"],
    ["click", "what it is, and whom it waited for"],
    ["?", "this list"],
  ];
  const MOVES = {
    w: (t0, t1) => [t0 + (t1 - t0) / 4, t1 - (t1 - t0) / 4],
    s: (t0, t1) => [t0 - (t1 - t0) / 2, t1 + (t1 - t0) / 2],
    a: (t0, t1) => [t0 - (t1 - t0) / 4, t1 - (t1 - t0) / 4],
    d: (t0, t1) => [t0 + (t1 - t0) / 4, t1 + (t1 - t0) / 4],
  };
  const ROW_MOVES = {
    e: ([first, last], at) => around(first, last, at, 1 / 2),
    q: ([first, last], at) => around(first, last, at, 2),
    k: ([first, last]) => [first - Math.ceil((last - first + 1) / 4), last - first + 1],
    j: ([first, last]) => [first + Math.ceil((last - first + 1) / 4), last - first + 1],
  };
  const BUTTONS = { "[": "timeline-previous", "]": "timeline-next" };
  // Fields of the address that are asked for and not yet in it; null for one that goes away.
  let wanted = {};
  let timer = null;
  let asked_at = -SETTLE_MS;
  let pointer = null;

  const figure = () => document.querySelector("#timeline-graph .js-plotly-plot");

  // A window of the same width inside the step; wider than the step is the step.
  function inside([t0, t1], length) {
    const width = Math.min(Math.max(t1 - t0, LEAST_MS), length);
    const begin = Math.min(Math.max(t0, 0), length - width);
    return [begin, begin + width];
  }

  // So many rows about one of them, which keeps its place among them: where they begin, and how many.
  function around(first, last, at, factor) {
    const count = Math.max(Math.round((last - first + 1) * factor), 1);
    return [Math.round(at - ((at - first) * count) / (last - first + 1)), count];
  }

  const asked = () => new URLSearchParams(window.location.search);
  const field = (name) => (name in wanted ? wanted[name] : asked().get(name));

  // Of an address that comes while the one before is drawn, Dash would draw neither.
  const isDrawing = () => document.getElementById("timeline-content")?.hasAttribute("data-dash-is-loading");

  // The address is the state: a figure may be drawn anew while a key is pressed.
  function ask(fields, after = asked_at + SETTLE_MS - performance.now()) {
    Object.assign(wanted, fields);
    window.clearTimeout(timer);
    timer = window.setTimeout(() => {
      if (!Object.keys(wanted).length) return;
      if (isDrawing()) return ask({}, POLL_MS);
      asked_at = performance.now();
      const query = asked();
      for (const [name, value] of Object.entries(wanted)) {
        if (value === null) query.delete(name);
        else query.set(name, value);
      }
      wanted = {};
      const words = query.toString();
      window.dash_clientside.set_props("timeline-url", { search: words ? `?${words}` : "" });
    }, after);
  }

  function move(change) {
    const length = figure()?.layout?.meta?.length_ms;
    if (!length) return;
    const border = (name, otherwise) => (field(name) === null ? otherwise : Number(field(name)) / NS_PER_MS);
    const [t0, t1] = inside(change(border("t0", 0), border("t1", length)), length);
    const isWhole = t1 - t0 >= length;
    const ns = (ms) => (isWhole ? null : Math.round(ms * NS_PER_MS));
    ask({ t0: ns(t0), t1: ns(t1) });
  }

  function shownRows(count) {
    const [first, last] = (field("rows") || `0-${count - 1}`).split("-").map(Number);
    return first < count ? [first, Math.min(last, count - 1)] : [0, count - 1];
  }

  function moveRows(change) {
    const { rows: count, spans } = figure()?.layout?.meta || {};
    if (!count) return;
    const [first, last] = shownRows(count);
    const pointed = pointer && placeOf(pointer);
    const [low, high] = (pointed && spans[pointed.row]) || [first, last];
    const at = Math.min(Math.max((low + high + 1) / 2, first), last + 1);
    const [begin, wide] = change([first, last], at);
    askRows(begin, Math.min(wide, count), count);
  }

  function askRows(begin, wide, count) {
    const from = Math.min(Math.max(begin, 0), count - wide);
    ask({ rows: wide >= count ? null : `${from}-${from + wide - 1}` });
  }

  function press(button) {
    // What was asked for before must not come after it.
    window.clearTimeout(timer);
    wanted = {};
    if (isDrawing()) timer = window.setTimeout(() => press(button), POLL_MS);
    else document.getElementById(button)?.click();
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
    else if (ROW_MOVES[event.key]) moveRows(ROW_MOVES[event.key]);
    // Not by its button: a figure that is drawn anew meanwhile would take the click with it.
    else if (event.key === "f") ask({ t0: null, t1: null, rows: null });
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
    const [area, axes] = plot();
    if (!area) return null;
    const x = event.clientX - area.left;
    const row = rowOf(event, area, axes);
    if (x < 0 || x > area.width || row === null) return null;
    return { row, at: Math.max(Math.round(axes.xaxis.p2d(x) * NS_PER_MS), 0) };
  }

  function plot() {
    const shown = figure();
    const axes = shown?._fullLayout;
    return axes?.xaxis?.p2d ? [shown.querySelector(".nsewdrag")?.getBoundingClientRect(), axes] : [];
  }

  function rowOf(event, area, axes) {
    const y = event.clientY - area.top;
    if (y < 0 || y > area.height) return null;
    const [tall, each] = tallRows();
    const at = axes.yaxis.p2d(y);
    const row = at < tall * each - 0.5 ? Math.floor((at + 0.5) / each) : Math.round(at) - tall * (each - 1);
    const last = axes.yaxis.range[0] - 0.5 - tall * (each - 1);
    return Math.min(Math.max(row, 0), last);
  }

  // The first rows, which are pinned, may each be as tall as several others.
  const tallRows = () => figure()?.layout?.meta?.tall || [0, 1];

  // Where a row begins on the axis.
  function topOf(row) {
    const [tall, each] = tallRows();
    return (row <= tall ? row * each : row + tall * (each - 1)) - 0.5;
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

  // From one name of a rank to another: these rows alone. A band shows which.
  let named = null;

  function nameAt(event) {
    const [area, axes] = event.target.closest?.("#timeline-graph") ? plot() : [];
    return area && event.clientX < area.left ? rowOf(event, area, axes) : null;
  }

  function band(rows) {
    document.getElementById("ms-band")?.remove();
    const [area, axes] = plot();
    if (!rows || !area) return;
    const box = document.createElement("div");
    box.id = "ms-band";
    box.className = "ms-band";
    const [top, bottom] = [Math.min(...rows), Math.max(...rows) + 1].map((row) => axes.yaxis.d2p(topOf(row)));
    box.style.left = `${area.left}px`;
    box.style.width = `${area.width}px`;
    box.style.top = `${area.top + top}px`;
    box.style.height = `${bottom - top}px`;
    document.body.appendChild(box);
  }

  function showNamed([one, other]) {
    const { rows: count, spans } = figure()?.layout?.meta || {};
    const chosen = (spans || []).slice(Math.min(one, other), Math.max(one, other) + 1).filter(Boolean);
    if (!chosen.length) return;
    const first = Math.min(...chosen.map((span) => span[0]));
    askRows(first, Math.max(...chosen.map((span) => span[1])) - first + 1, count);
  }

  let pressed = null;
  document.addEventListener(
    "mousedown",
    (event) => {
      const inside = event.button === 0 && event.target.closest?.("#timeline-graph");
      pressed = inside ? [event.clientX, event.clientY] : null;
      const row = inside ? nameAt(event) : null;
      named = row === null ? null : [row, row];
      // The names are not to be selected as text.
      if (named) event.preventDefault();
    },
    true,
  );
  document.addEventListener("mousemove", (event) => {
    pointer = event;
    if (!named) return;
    const [area, axes] = plot();
    const row = area ? rowOf(event, area, axes) : null;
    if (row !== null) named[1] = row;
    band(named);
  });
  document.addEventListener(
    "mouseup",
    (event) => {
      const [from, rows] = [pressed, named];
      pressed = null;
      named = null;
      band(null);
      const isStill = from && Math.hypot(event.clientX - from[0], event.clientY - from[1]) <= STILL_PX;
      if (rows && !isStill) return showNamed(rows);
      if (event.detail > 1) delete wanted.place;
      const place = isStill && event.detail <= 1 && placeOf(event);
      if (!place) return;
      window.dash_clientside.set_props("timeline-at", { data: place });
      const rank = figure()?.layout?.meta?.ranks?.[place.row];
      if (rank !== undefined) ask({ place: `${rank}-${place.at}` }, CLICK_MS);
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

  function show(found, event) {
    tip()?.remove();
    if (!found.sentences?.length) return;
    const box = document.createElement("div");
    box.id = "ms-tip";
    box.className = "ms-tip";
    for (const text of [found.place, ...found.sentences]) {
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
        .then((found) => show(found, event))
        .catch(() => {});
    }, REST_MS);
  });
})();
