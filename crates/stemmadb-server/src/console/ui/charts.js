// Plots in SVG: lines over time, and bars.

import { html } from '../lib/dom.js';
import { compact } from '../lib/format.js';

// A small line without axes. `values`: numbers, the newest last.
export function Sparkline({ values, width = 84, height = 20, label }) {
  const max = Math.max(...values, 1e-9);
  const step = width / Math.max(values.length - 1, 1);
  const points = values.map(
    (value, at) => `${(at * step).toFixed(1)},${(height - 1.5 - (value / max) * (height - 3)).toFixed(1)}`,
  );
  return html`<svg class="spark" viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} role="img"
    aria-label=${label}>
    <line x1="0" x2=${width} y1=${height - 1.5} y2=${height - 1.5} />
    ${values.length > 1 && html`<polyline points=${points.join(' ')} />`}
  </svg>`;
}

// The largest value of an axis: 1, 2 or 5 times a power of ten.
function axisMax(value) {
  const power = 10 ** Math.floor(Math.log10(value || 1));
  return [1, 2, 5, 10].map((factor) => factor * power).find((limit) => limit >= value) ?? value;
}

// Lines over time with axes. `series`: [{ name, values }], where values are [ms, number] in order.
export function TimePlot({ title, series, unit = compact }) {
  const [width, height, left, bottom, top] = [440, 150, 54, 20, 8];
  const all = series.flatMap(({ values }) => values);
  const times = all.map(([time]) => time);
  const [from, to] = [Math.min(...times), Math.max(...times)];
  const max = axisMax(Math.max(...all.map(([, value]) => value), 0));
  const x = (time) => left + ((time - from) / Math.max(to - from, 1)) * (width - left - 6);
  const y = (value) => top + (1 - value / max) * (height - top - bottom);
  const last = series.map(({ name, values }) => `${name} ${unit(values.at(-1)?.[1])}`).join(', ');
  const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);
  return html`<figure class="plot">
    <figcaption>${title}</figcaption>
    <svg viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`${title}: ${last}`}>
      ${[0, 0.5, 1].map(
        (share) => html`<g key=${share} class="axis">
        <line x1=${left} x2=${width - 6} y1=${y(max * share)} y2=${y(max * share)} />
        <text x=${left - 6} y=${y(max * share) + 4} text-anchor="end">${unit(max * share)}</text>
      </g>`,
      )}
      ${
        to > from &&
        html`<g class="axis"><text x=${left} y=${height - 4}>${clock(from)}</text>
        <text x=${width - 6} y=${height - 4} text-anchor="end">${clock(to)}</text></g>`
      }
      ${series.map(
        ({ name, values }, at) => html`<polyline key=${name} class=${`line-${at}`}
        points=${values.map(([time, value]) => `${x(time).toFixed(1)},${y(value).toFixed(1)}`).join(' ')} />`,
      )}
    </svg>
    ${
      series.length > 1 &&
      html`<div class="legend">${series.map(
        ({ name, values }, at) => html`<span key=${name} class=${`line-${at}`}>
      ${name} <b>${unit(values.at(-1)?.[1])}</b></span>`,
      )}</div>`
    }
  </figure>`;
}

// Horizontal bars. `rows`: [{ label, value }].
export function Bars({ label, rows, unit = compact }) {
  const max = Math.max(...rows.map(({ value }) => Math.abs(value)), 1e-9);
  return html`<table class="bars" aria-label=${label}><tbody>
    ${rows.map(
      ({ label, value }, at) => html`<tr key=${at}>
      <th scope="row" title=${label}>${label}</th>
      <td><div class="bar" style=${{ width: `${(Math.abs(value) / max) * 100}%` }}></div></td>
      <td class="right">${unit(value)}</td>
    </tr>`,
    )}
  </tbody></table>`;
}

// Columns for numeric keys, in the order of the keys. `rows`: [{ key, value }].
export function Columns({ label, rows, unit = compact }) {
  const [width, height, left, bottom, top] = [900, 260, 54, 22, 10];
  const keys = rows.map(({ key }) => key);
  const [from, to] = [Math.min(...keys), Math.max(...keys)];
  const max = axisMax(Math.max(...rows.map(({ value }) => value), 0));
  const room = width - left - 10;
  const bar = Math.max(1, Math.min(26, (room / Math.max(to - from + 1, rows.length)) * 0.8));
  const x = (key) => left + bar / 2 + ((key - from) / Math.max(to - from, 1e-9)) * (room - bar);
  const y = (value) => top + (1 - Math.max(0, value) / max) * (height - top - bottom);
  return html`<svg class="columns" viewBox=${`0 0 ${width} ${height}`} role="img"
    aria-label=${`${label}, ${rows.length} values from ${from} to ${to}`}>
    ${[0, 0.5, 1].map(
      (share) => html`<g key=${share} class="axis">
      <line x1=${left} x2=${width - 10} y1=${y(max * share)} y2=${y(max * share)} />
      <text x=${left - 6} y=${y(max * share) + 4} text-anchor="end">${unit(max * share)}</text>
    </g>`,
    )}
    ${[from, rows.every(({ key }) => Number.isInteger(key)) ? Math.round((from + to) / 2) : (from + to) / 2, to].map(
      (key, at) => html`<text key=${`x${at}`} class="axis-text" x=${x(key)} y=${height - 5}
      text-anchor=${['start', 'middle', 'end'][at]}>${Number.isInteger(key) ? key : key.toFixed(1)}</text>`,
    )}
    ${rows.map(
      ({
        key,
        value,
      }) => html`<rect key=${key} x=${x(key) - bar / 2} y=${y(value)} width=${bar} height=${y(0) - y(value)}>
      <title>${`${key}: ${value}`}</title></rect>`,
    )}
  </svg>`;
}
