// Light, dark, or what the system has: the reader's choice, kept by the browser where Mantine looks
// for it. Without storage the choice lasts as long as the page.
(function () {
  const KEY = "mantine-color-scheme-value";
  const CHOICES = ["auto", "light", "dark"];
  const WORDS = { auto: "Theme: system", light: "Theme: light", dark: "Theme: dark" };
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = "auto";

  try {
    chosen = window.localStorage.getItem(KEY) || chosen;
  } catch (error) {
    // A browser may forbid storage; the system then decides.
  }
  if (!CHOICES.includes(chosen)) chosen = "auto";

  function show() {
    const shown = chosen === "auto" ? (system.matches ? "dark" : "light") : chosen;
    document.documentElement.setAttribute("data-mantine-color-scheme", shown);
  }

  function choose(choice) {
    chosen = choice;
    const event = { key: KEY, newValue: choice };
    try {
      window.localStorage.setItem(KEY, choice);
      event.storageArea = window.localStorage;
    } catch (error) {
      // See above.
    }
    show();
    // Mantine listens for a choice that was made in another window, and takes this for one.
    window.dispatchEvent(new StorageEvent("storage", event));
  }

  function name(button) {
    if (button.textContent !== WORDS[chosen]) button.textContent = WORDS[chosen];
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#theme-choice");
    if (!button) return;
    choose(CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length]);
    name(button);
  });

  window.addEventListener("storage", (event) => {
    if (event.key !== KEY || !CHOICES.includes(event.newValue)) return;
    chosen = event.newValue;
    document.querySelectorAll("#theme-choice").forEach(name);
  });

  // Each page brings a button of its own.
  new MutationObserver(() => document.querySelectorAll("#theme-choice").forEach(name)).observe(
    document.documentElement,
    { childList: true, subtree: true },
  );
  show();
})();
