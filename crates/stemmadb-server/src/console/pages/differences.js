// A table of the fields in which two documents differ.

import { html } from '../lib/dom.js';
import { differences, pathText } from '../lib/diff.js';
import { stringify } from '../lib/json.js';

const SHOWN_MAX = 300;
const TEXT_MAX = 2000;

export function valueText(value) {
  const text = value === undefined ? '' : stringify(value, 2);
  return text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}…` : text;
}

// With `choose(path, side)` and `chosen` (a Map from path text to 'left' or 'right'), each row has a choice.
export function Differences({ left, right, names, choose, chosen }) {
  const found = differences(left, right);
  if (found.length === 0) return html`<p class="soft">They have the same contents.</p>`;
  const pick = (path, side, value) => {
    const text = pathText(path);
    const shown =
      value === undefined ? html`<i class="soft">no such field</i>` : html`<code>${valueText(value)}</code>`;
    if (!choose) return shown;
    return html`<label class="check"><input type="radio" name=${`pick-${text}`}
      checked=${(chosen.get(text) ?? 'left') === side}
      aria-label=${`${text}: ${side === 'left' ? names[0] : names[1]}`} onChange=${() => choose(path, side)} />${shown}
        </label>`;
  };
  return html`<div class="table-box fit"><table class="diff" aria-label="Differences">
    <thead><tr><th scope="col">Field</th><th scope="col">${names[0]}</th><th scope="col">${names[1]}</th></tr></thead>
    <tbody>${found.slice(0, SHOWN_MAX).map(
      ({ path, left, right }) => html`<tr key=${pathText(path)}
      class=${left === undefined ? 'added' : right === undefined ? 'removed' : 'changed'}>
      <th scope="row" class="mono">${pathText(path)}</th><td class="left">${pick(path, 'left', left)}</td><td
        class="right-side">${pick(path, 'right', right)}</td>
    </tr>`,
    )}</tbody>
  </table></div>
  ${found.length > SHOWN_MAX && html`<p class="soft">${found.length - SHOWN_MAX} more differences are not shown.</p>`}`;
}
