// Tables of pages: a heading sorts, long ones are searched and paged, all are saved as CSV.
(function () {
  const PAGE_ROWS = 25;
  const SEARCH_ROWS = 10;
  const LOOK_MS = 150;
  const UNITS = {
    ns: 1, µs: 1e3, ms: 1e6, s: 1e9,
    B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40,
    k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15,
  };
  const NUMBER = /^[^\d+−-]*([+−-]?\d[\d,]*\.?\d*)\s*([A-Za-zµ]*)/;

  const text = (cell) => (cell ? cell.textContent.trim() : "");
  const rowsOf = (table) => [...table.tBodies[0].rows];

  // A cell as a number in the smallest unit; null where it holds none.
  function amount(words) {
    const found = NUMBER.exec(words.replace(/^rank\s+/i, ""));
    if (!found || !/^[+−-]?\d/.test(words.replace(/^rank\s+/i, ""))) return null;
    const number = Number(found[1].replaceAll(",", "").replace("−", "-"));
    return number * (UNITS[found[2]] ?? UNITS[found[2].charAt(0)] ?? 1);
  }

  function compare(one, other) {
    const [a, b] = [amount(one), amount(other)];
    if (a !== null && b !== null) return a - b;
    if (a !== null || b !== null) return a === null ? -1 : 1;
    return one.localeCompare(other, undefined, { numeric: true });
  }

  function order(head) {
    const table = head.closest("table");
    const at = head.cellIndex;
    const sign = head.getAttribute("aria-sort") === "descending" ? -1 : 1;
    const rows = rowsOf(table).sort((one, other) => sign * compare(text(one.cells[at]), text(other.cells[at])));
    table.tBodies[0].append(...rows);
  }

  function sort(head) {
    const isDown = head.getAttribute("aria-sort") !== "descending";
    for (const cell of head.parentElement.cells) cell.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", isDown ? "descending" : "ascending");
    order(head);
    show(head.closest("table"));
  }

  // The rows that hold what is searched for, a page of them.
  function show(table) {
    const state = table.msSheet;
    const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rowsOf(table).filter((row) => {
      const all = row.textContent.toLowerCase();
      return words.every((word) => all.includes(word));
    });
    const pages = Math.max(Math.ceil(found.length / PAGE_ROWS), 1);
    state.page = Math.min(Math.max(state.page, 0), pages - 1);
    const first = state.page * PAGE_ROWS;
    const shown = new Set(found.slice(first, first + PAGE_ROWS));
    for (const row of rowsOf(table)) row.hidden = !shown.has(row);
    const last = Math.min(first + PAGE_ROWS, found.length);
    state.count.textContent = found.length ? `${first + 1}–${last} of ${found.length} rows` : "no such row";
    state.before.disabled = state.page === 0;
    state.after.disabled = state.page === pages - 1;
    state.pager.hidden = rowsOf(table).length <= PAGE_ROWS && !words.length;
  }

  // A spreadsheet takes a cell that begins so for a formula.
  function csvCell(words) {
    const safe = amount(words) === null ? words.replace(/^[=+\-@\t\r]/, "'$&") : words;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  function save(table) {
    const lines = [...table.tHead.rows, ...rowsOf(table)].map((row) => [...row.cells].map((cell) => csvCell(text(cell))).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    link.download = `${titleOf(table).toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "")}.csv`;
    link.click();
    window.setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const titleOf = (table) => table.closest(".ms-card")?.querySelector(".ms-card-title")?.textContent || "table";

  function button(words, label, press) {
    const made = document.createElement("button");
    made.type = "button";
    made.className = "ms-plain";
    made.textContent = words;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", press);
    return made;
  }

  function tools(table) {
    const line = document.createElement("div");
    line.className = "ms-note ms-sheet";
    const count = document.createElement("span");
    count.setAttribute("role", "status");
    const move = (by) => () => {
      table.msSheet.page += by;
      show(table);
    };
    const title = titleOf(table);
    const before = button("‹", `rows before, ${title}`, move(-1));
    const after = button("›", `next rows, ${title}`, move(1));
    const pager = document.createElement("span");
    pager.append(before, count, after);
    table.msSheet = { words: "", page: 0, count, before, after, pager };
    if (rowsOf(table).length > SEARCH_ROWS) {
      const field = document.createElement("input");
      field.type = "search";
      field.placeholder = "Search";
      field.setAttribute("aria-label", `search in ${title}`);
      field.addEventListener("input", () => {
        Object.assign(table.msSheet, { words: field.value, page: 0 });
        show(table);
      });
      line.append(field);
    }
    line.append(pager);
    const hasOwn = table.closest(".ms-card")?.querySelector("a.ms-json[title$='as CSV']");
    if (!hasOwn) line.append(button("CSV", `${title}, as CSV`, () => save(table)));
    if (line.childElementCount > 1 || !hasOwn) table.parentElement.append(line);
    for (const head of table.tHead.rows[0].cells) {
      if (text(head)) head.tabIndex = 0;
    }
    table.dataset.sheet = "";
    show(table);
  }

  function cellOf(cell, isNumber) {
    const made = document.createElement("td");
    if (isNumber) made.className = "ms-number";
    if (!Array.isArray(cell)) {
      made.textContent = cell;
      return made;
    }
    const name = document.createElement("span");
    [name.textContent, name.title, name.className] = cell;
    made.append(name);
    return made;
  }

  // Rows that came as data; as text only, whatever they hold.
  function make(body) {
    if (body.msMade === body.dataset.rows) return;
    body.msMade = body.dataset.rows;
    const { rows, numeric_from: numbers, marked } = JSON.parse(body.dataset.rows);
    const made = rows.map((cells, at) => {
      const row = document.createElement("tr");
      if (at < marked) row.className = "ms-marked";
      row.append(...cells.map((cell, column) => cellOf(cell, column >= numbers)));
      return row;
    });
    body.replaceChildren(...made);
    const table = body.closest("table");
    if (!table.msSheet) return;
    const head = table.tHead.querySelector("[aria-sort]");
    if (head) order(head);
    show(table);
  }

  const makeAll = () => document.querySelectorAll("tbody[data-rows]").forEach(make);

  // Rows come and go on a live page: what is shown is found again.
  function look() {
    for (const table of document.querySelectorAll(".ms-table-wrap:not(.ms-figure-rows) > .ms-table")) {
      if (!table.tHead?.rows.length || !table.tBodies.length) continue;
      const count = rowsOf(table).length;
      if (!table.msSheet) tools(table);
      else if (table.msSheet.rows !== count) show(table);
      table.msSheet.rows = count;
    }
  }

  let looking = null;
  const observer = new MutationObserver(() => {
    makeAll();
    looking ??= window.setTimeout(() => {
      looking = null;
      look();
    }, LOOK_MS);
  });
  observer.observe(document.documentElement, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["data-rows"],
  });

  const headOf = (event) => event.target.closest?.(".ms-table-wrap:not(.ms-figure-rows) > .ms-table th[tabindex]");
  document.addEventListener("click", (event) => {
    const head = headOf(event);
    if (head) sort(head);
  });
  document.addEventListener("keydown", (event) => {
    const head = (event.key === "Enter" || event.key === " ") && headOf(event);
    if (!head) return;
    event.preventDefault();
    sort(head);
  });
})();
