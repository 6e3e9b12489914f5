// What happens in the browser alone: the title of the window, the list of runs, and a server that is gone.

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

// A server or tunnel that is gone is reported, and looked for until it answers: the address has the
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
