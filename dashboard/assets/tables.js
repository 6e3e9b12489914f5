// "View as table" below each figure: the numbers that it draws, as rows that can be sorted and saved.
//
// Rows come from the drawn figure itself, so the two cannot differ. A figure that shows more than it
// can list, or no numbers, brings rows of its own in `layout.meta.table`, and names for its columns
// in `layout.meta.columns`.
(function () {
  const MOST_ROWS = 2000;
  const DIGITS = 6;
  const TAGS = /<[^>]*>/g;

  const words = (text) =>
    String(text ?? "").replace(TAGS, " ").replaceAll("&lt;", "<").replaceAll("&amp;", "&").trim();
  const isNumber = (value) => typeof value === "number";
  const list = (values) => Array.from(values || []);

  // What stands on an axis in place of a number.
  function label(axis, value) {
    const at = axis?.tickvals && axis.ticktext ? list(axis.tickvals).indexOf(value) : -1;
    if (at >= 0) return words(axis.ticktext[at]);
    return isNumber(value) ? value : words(value);
  }

  const axis = (drawn, trace, letter) => {
    const place = trace[`${letter}axis`] || letter;
    return drawn._fullLayout[`${letter}axis${place.slice(1)}`];
  };
  const title = (one) => words(one?.title?.text);

  function cellsOf(drawn, trace) {
    const [x, y] = [list(trace.x), list(trace.y)];
    const [across, down] = [axis(drawn, trace, "x"), axis(drawn, trace, "y")];
    return list(trace.z).flatMap((line, row) =>
      list(line)
        .map((value, column) => [words(trace.name), label(down, y[row]), label(across, x[column]), value])
        .filter((cells) => Number.isFinite(cells[3])),
    );
  }

  function pointsOf(drawn, trace) {
    const [across, down] = [axis(drawn, trace, "x"), axis(drawn, trace, "y")];
    const lies = trace.orientation === "h";
    const name = [words(trace.name), words(trace.meta)].filter(Boolean).join(", ");
    const [keys, values] = lies ? [list(trace.y), list(trace.x)] : [list(trace.x), list(trace.y)];
    return keys
      .map((key, at) => [name, label(lies ? down : across, key), values[at]])
      .filter((cells) => Number.isFinite(cells[2]));
  }

  // Names of the columns by what the axes are called; of several axes the last has the title.
  function columnsOf(drawn, traces, named) {
    const titles = (letter) => traces.map((one) => title(axis(drawn, one, letter))).filter(Boolean);
    const only = (letter, otherwise) => {
      const found = [...new Set(titles(letter))];
      return found.length === 1 ? found[0] : otherwise;
    };
    const isMap = traces.some((one) => one.type === "heatmap");
    const lies = traces.some((one) => one.orientation === "h");
    const scale = words(traces.find((one) => one.colorbar?.title?.text)?.colorbar.title.text);
    const found = isMap
      ? ["panel", only("y", "row"), only("x", "column"), scale || "value"]
      : ["series", lies ? only("y", "row") : only("x", "x"), lies ? only("x", "value") : only("y", "value")];
    return named ? [found[0], ...named] : found;
  }

  function tableOf(drawn) {
    const meta = drawn._fullLayout.meta || {};
    if (meta.table) return meta.table;
    const isShown = (one) => one.visible === true && one.hoverinfo !== "skip";
    const traces = list(drawn._fullData).filter(isShown);
    const rows = traces.flatMap((one) =>
      one.type === "heatmap" ? cellsOf(drawn, one) : pointsOf(drawn, one),
    );
    const columns = columnsOf(drawn, traces, meta.columns);
    if (new Set(rows.map((cells) => cells[0])).size > 1) return { columns, rows };
    return { columns: columns.slice(1), rows: rows.map((cells) => cells.slice(1)) };
  }

  function shown(value) {
    if (!isNumber(value)) return value ?? "";
    return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(DIGITS)));
  }

  const order = (one, other) =>
    isNumber(one) && isNumber(other)
      ? one - other
      : String(one).localeCompare(String(other), undefined, { numeric: true });

  // A spreadsheet takes a cell that begins so for a formula.
  function csvCell(value) {
    const text = isNumber(value) ? String(value) : String(value ?? "").replace(/^[=+\-@\t\r]/, "'$&");
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  function save(table, name) {
    const lines = [table.columns, ...table.rows].map((cells) => cells.map(csvCell).join(","));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }));
    link.download = `${name}.csv`;
    link.click();
    window.setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function head(table, draw, sorted) {
    const row = element("tr");
    table.columns.forEach((name, at) => {
      const isOwn = sorted.at === at;
      const cell = element("th", undefined, isOwn ? { "aria-sort": sorted.down ? "descending" : "ascending" } : {});
      const button = element("button", name, { type: "button", class: "ms-sort" });
      button.addEventListener("click", () => draw({ at, down: isOwn ? !sorted.down : true }));
      cell.appendChild(button);
      row.appendChild(cell);
    });
    return row;
  }

  function draw(place, table, name, sorted = {}) {
    place.msSorted = sorted;
    if (sorted.at !== undefined) {
      table.rows.sort((one, other) => order(one[sorted.at], other[sorted.at]) * (sorted.down ? -1 : 1));
    }
    const made = element("table", undefined, { class: "ms-table" });
    const again = (next) => {
      draw(place, table, name, next);
      place.querySelectorAll(".ms-sort")[next.at].focus();
    };
    made.appendChild(element("thead")).appendChild(head(table, again, sorted));
    const body = made.appendChild(element("tbody"));
    for (const cells of table.rows.slice(0, MOST_ROWS)) {
      const row = body.appendChild(element("tr"));
      cells.forEach((value) => row.appendChild(element("td", shown(value))));
    }
    const all = table.rows.length.toLocaleString("en");
    const count = table.rows.length > MOST_ROWS ? `${MOST_ROWS.toLocaleString("en")} of ${all} rows; CSV has all.` : `${all} rows.`;
    const line = element("p", `${count} `, { class: "ms-note" });
    const button = element("button", "Save as CSV", { type: "button", class: "ms-plain" });
    button.addEventListener("click", () => save(table, name));
    line.appendChild(button);
    const wrap = element("div", undefined, { class: "ms-table-wrap ms-figure-rows", tabindex: "0" });
    wrap.appendChild(made);
    place.replaceChildren(line, wrap);
  }

  function open(details) {
    const place = details.querySelector(".ms-figure-table");
    const graph = details.closest("figure")?.querySelector(".dash-graph");
    const drawn = graph?.querySelector(".js-plotly-plot");
    if (!place || !drawn?._fullLayout) return;
    const table = tableOf(drawn);
    // What was sorted stays so in a figure that is drawn anew.
    const isSame = place.msColumns === table.columns.join();
    place.msColumns = table.columns.join();
    draw(place, { columns: table.columns, rows: [...table.rows] }, graph.id, isSame ? place.msSorted : {});
    if (drawn.msTable) return;
    // A figure that is drawn anew has other numbers.
    drawn.msTable = true;
    drawn.on("plotly_afterplot", () => details.open && details.isConnected && open(details));
  }

  // This event does not rise: it is caught on its way down.
  document.addEventListener(
    "toggle",
    (event) => event.target.matches?.(".ms-figure-data") && event.target.open && open(event.target),
    true,
  );
})();
