// Positions of known games as pictures, read from what the seat was shown.

import { h, svg } from "../dom.js";

const BOARDS = [nim, ticTacToe, cards];
const MOST = 200; // stones or moves that are drawn: a text may name any number of them

// The picture of the position that a turn was asked about; null: it is shown as text.
export function board(turn) {
  for (const draw of BOARDS) {
    const found = draw(turn.asked, turn.move, turn.role);
    if (found) return h("figure.board", {}, found);
  }
  return null;
}

function nim(text, move) {
  const match = /^Nim: (\d+) left/.exec(text);
  const left = Number(match?.[1]);
  if (!(left >= 1 && left <= MOST)) return null;
  const taken = Number(move) || 0;
  const columns = Math.min(left, 8);
  const rows = Math.ceil(left / columns);
  const stones = Array.from({ length: left }, (_, index) =>
    svg(`circle.stone${index >= left - taken ? ".taken" : ""}`, {
      cx: 20 + (index % columns) * 34, cy: 20 + Math.floor(index / columns) * 34, r: 13,
    }));
  return svg("svg", { width: 40 + (columns - 1) * 34, height: 40 + (rows - 1) * 34, role: "img", "aria-label": `${left} stones${taken ? `, ${taken} taken` : ""}` }, stones);
}

function ticTacToe(text, move, role) {
  const cells = /^You \+\n((?:\d[+-]?\s*){9})/.exec(text)?.[1].match(/\d[+-]?/g);
  if (!cells) return null;
  const drawn = cells.map((cell, index) => {
    const [x, y] = [(index % 3) * 52 + 4, Math.floor(index / 3) * 52 + 4];
    const chosen = move === cell[0] && cell.length === 1;
    const sign = cell[1] ?? (chosen ? "+" : "");
    return svg("g", { transform: `translate(${x} ${y})` },
      svg(`rect.cell${chosen ? ".chosen" : ""}`, { width: 48, height: 48, rx: 8 }),
      !sign
        ? svg("text.free", { x: 24, y: 29 }, cell[0])
        : (sign === "+") === (role === "x") ? svg("path.cross", { d: "M14 14L34 34M34 14L14 34" }) : svg("circle.nought", { cx: 24, cy: 24, r: 11 }));
  });
  return svg("svg", { width: 160, height: 160, role: "img", "aria-label": "board" }, drawn);
}

function cards(text) {
  const match = /^(?:Kuhn|Leduc|Hanabi): card (\w+)(?:, board (\w+|-))?(?:, (bets|partner) (\S{1,200}?))?\.?\n/.exec(`${text}\n`);
  if (!match) return null;
  const [, own, shared, , past] = match;
  const one = (name, x, kind) => svg("g", { transform: `translate(${x} 4)` },
    svg(`rect.card-face.${kind}`, { width: 56, height: 78, rx: 8 }),
    svg("text.rank", { x: 28, y: 49 }, name === "-" ? "" : name));
  const moves = past && past !== "-" ? [...past] : [];
  const shown = [one(own, 4, "own-card"), shared ? one(shared, 72, "shared") : null];
  const left = shared ? 146 : 78;
  return svg("svg", { width: left + 34 * Math.max(1, moves.length) + 8, height: 86, role: "img", "aria-label": `card ${own}` },
    shown.filter(Boolean),
    moves.map((move, index) => svg("g", { transform: `translate(${left + index * 34} 43)` }, svg("circle.chip", { cx: 14, cy: 0, r: 14 }), svg("text.chip-text", { x: 14, y: 5 }, move))));
}
