// The drawer with the words of the page that is open, from the glossary of the documentation.
(function () {
  let words = null;
  let drawer = null;

  // Below the same path as this program, which a proxy may have moved.
  const address = () =>
    new URL("glossary.json", document.querySelector("script[src*='assets/glossary.js']").src).href;

  const phrase = (word) =>
    new RegExp(`(?<![\\w-])${word.toLowerCase().replace(/[.*+?^${}()|[\]\\]/g, "\\$&").replace(/[_ ]/g, "[_ ]")}s?(?![\\w-])`);

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function list(asked) {
    const page = (document.querySelector("main")?.innerText || "").toLowerCase();
    const sought = asked.trim().toLowerCase();
    const isShown = (one) =>
      sought
        ? one.words.some((word) => word.toLowerCase().includes(sought))
        : one.words.some((word) => phrase(word).test(page));
    const found = words.filter(isShown);
    found.sort((one, other) => one.words[0].localeCompare(other.words[0]));
    const entries = element("dl");
    for (const one of found) {
      entries.appendChild(element("dt", one.words.map((word) => word.replaceAll("_", " ")).join(", ")));
      entries.appendChild(element("dd", one.meaning));
    }
    drawer.querySelector(".ms-note").textContent = sought
      ? `${found.length} of ${words.length} words`
      : `The ${found.length} words of this page; type to find others`;
    drawer.querySelector("dl").replaceWith(entries);
  }

  function close() {
    drawer?.remove();
    drawer = null;
    document.getElementById("glossary-open")?.focus();
  }

  async function open() {
    words ??= await window.fetch(address()).then((answer) => answer.json());
    if (drawer) return;
    drawer = element("aside", undefined, { id: "ms-glossary", class: "ms-glossary", "aria-label": "Glossary" });
    const head = element("div", undefined, { class: "ms-card-row" });
    head.append(element("h2", "Glossary", { class: "ms-card-title" }), element("span", undefined, { class: "ms-spring" }));
    const shut = element("button", "Close", { type: "button", class: "ms-plain" });
    shut.addEventListener("click", close);
    head.appendChild(shut);
    const asked = element("input", undefined, { type: "search", "aria-label": "find a word", placeholder: "Find a word" });
    asked.addEventListener("input", () => list(asked.value));
    drawer.append(head, asked, element("p", undefined, { class: "ms-note" }), element("dl"));
    document.body.appendChild(drawer);
    list("");
    asked.focus();
  }

  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("#glossary-open")) return;
    if (drawer) close();
    else open();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && drawer) close();
  });
  // Another page has other words; links within the dashboard load none.
  document.addEventListener("click", (event) => {
    if (drawer && event.target.closest?.("a[href]")) close();
  });
  window.addEventListener("popstate", () => drawer && close());
})();
