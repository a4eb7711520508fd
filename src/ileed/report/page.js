"use strict";
// Tables are sorted by a click on, or a key at, the title of a column; everything is unfolded for paper.
const value = (cell) => (cell.dataset.v === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.v));
const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), undefined, { numeric: true }));
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const table = head.closest("table");
    const place = head.cellIndex;
    const numbers = table.tBodies[0].rows[0] && table.tBodies[0].rows[0].cells[place].dataset.v !== undefined;
    const before = head.getAttribute("aria-sort");
    const falling = before ? before === "ascending" : numbers;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    for (const gap of table.querySelectorAll("tr.gap")) gap.remove();
    for (const row of table.querySelectorAll("tr.start")) row.classList.remove("start");
    const rows = Array.from(table.tBodies[0].rows);
    rows.sort((a, b) => (falling ? -1 : 1) * compare(value(a.cells[place]), value(b.cells[place])));
    table.tBodies[0].append(...rows);
  });
}
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details")) folded.open = true;
});
