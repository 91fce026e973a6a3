// Unfolds what a link leads to, and everything on paper.
(() => {
  const unfold = () => {
    const target = document.querySelector(":target");
    if (!target) return;
    for (const one of target.querySelectorAll(":scope > details")) one.open = true;
    for (let one = target; one; one = one.parentElement) if (one.matches("details")) one.open = true;
    if (!target.getClientRects().length) document.getElementById("show-all").checked = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", unfold);
  addEventListener("click", (event) => {
    if (event.target.closest('a[href^="#"]')) setTimeout(unfold);
  });
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
  });
  addEventListener("afterprint", () => {
    for (const one of folded) one.open = false;
  });
  addEventListener("load", unfold);
})();
