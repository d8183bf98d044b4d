// Before anything is drawn, so that nothing is drawn twice. Without storage the system's choice holds.
"use strict";
try {
  const chosen = localStorage.getItem("k3gw-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {}
