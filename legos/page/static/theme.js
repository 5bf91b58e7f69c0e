// Sets the theme before the first paint; the choice is kept in this browser.
(() => {
  const chosen = localStorage.getItem("legos-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
