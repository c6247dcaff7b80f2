// The plan of a query as a tree: estimated and actual rows of each step, and what the numbers mean.

import { html } from '../lib/dom.js';
import { count, microseconds, plural } from '../lib/format.js';
import { stringify } from '../lib/json.js';

// An estimate that is wrong by more than this factor is marked.
const OFF = 10;

const ratio = (left, right) => (Math.max(left, right) + 1) / (Math.min(left, right) + 1);

// One sentence on what the query costs, and whether that is good.
function verdict(plan) {
  if (plan.rows === undefined) return ['', 'The query was not run: only estimates are known.'];
  const read = plan.documents_read;
  const each = read / Math.max(plan.rows, 1);
  const what = `${plural(plan.rows, 'row')} in ${microseconds(plan.time_us)}`;
  if (plan.check) {
    const checked = plural(plan.check.documents_read, 'document');
    const share = `${checked} read to decide which match, ${count(plan.check.rows)} do`;
    return each > OFF
      ? ['warn', `${what}, but ${share}. An index that covers the condition below would avoid that.`]
      : ['good', `${what}: ${share}.`];
  }
  if (read === 0) return ['good', `${what}, from the index alone: no document had to be read to decide.`];
  return each > OFF
    ? ['warn', `${what}, but ${plural(read, 'document')} read for them: ${count(Math.round(each))} for each row.`]
    : ['good', `${what}, with ${plural(read, 'document')} read.`];
}

const orderText = ({ order, sort, limit, skip }) =>
  [
    order,
    sort?.length > 0 && `sort ${stringify(sort)}`,
    limit !== undefined && `limit ${count(limit)}`,
    skip > 0 && `skip ${count(skip)}`,
  ]
    .filter(Boolean)
    .join(', ');

export function Plan({ explained }) {
  const { plan } = explained;
  const [kind, text] = verdict(plan);
  const most = largest(plan.filter);
  return html`<section class="plan" aria-label="Plan">
    <p class=${`note ${kind}`} role="status">${text}</p>
    <ul class="plan-tree">
      <li><div class="step root">
          <span class="step-name">Rows</span>
          <span class="step-detail">
            ${orderText(plan)}
              </span>
          <${Numbers} estimated=${plan.estimated_rows} actual=${plan.rows} time=${plan.time_us} most=${most}
            limited=${plan.limit !== undefined} />
        </div>
        <ul>
          ${
            plan.checked_on_documents !== undefined &&
            html`<li><div class="step check">
            <span class="step-name">Check on documents</span><span class="step-detail mono">
              ${stringify(plan.checked_on_documents)}</span>
            <${Numbers} actual=${plan.check?.rows} time=${plan.check?.time_us} most=${most}
              note=${plan.check ? `of ${plural(plan.check.documents_read, 'document')}` : ''} />
          </div></li>`
          }
          <${Step} step=${plan.filter} most=${most} />
        </ul>
      </li>
    </ul>
    <p class="soft">Index of the plan in CouchDB's terms: <span class="mono">${explained.index?.name ?? 'none'}
      </span>. Each step reads only the index; bars compare rows${' '}
      <span class="key estimated">estimated</span> and <span class="key actual">actual</span>.</p>
  </section>`;
}

const largest = (step) => Math.max(step.estimated_rows ?? 0, step.rows ?? 0, ...(step.of ?? []).map(largest), 1);

function Step({ step, most }) {
  const actual = step.rows === undefined ? undefined : step.rows + (step.undecided ?? 0);
  return html`<li><div class=${`step ${step.left_to_documents ? 'left-out' : ''}`}>
      <span class="step-name">${step.operation}</span>
      <span class="step-detail mono">${[step.path, step.detail].filter(Boolean).join(' ')}</span>
      ${!step.exact && html`<span class="tag" title="Candidates are checked on the documents">not exact</span>`}
      ${step.left_to_documents && html`<span class="tag">left to the documents</span>`}
      <${Numbers} estimated=${step.estimated_rows} actual=${actual} time=${step.time_us} most=${most}
        note=${step.undecided ? `${count(step.undecided)} undecided` : ''} />
    </div>
    ${step.of && html`<ul>${step.of.map((child, at) => html`<${Step} key=${at} step=${child} most=${most} />`)}</ul>`}
  </li>`;
}

function Numbers({ estimated, actual, time, most, note, limited }) {
  const off = !limited && estimated !== undefined && actual !== undefined && ratio(estimated, actual) > OFF;
  const bar = (value, name) =>
    value !== undefined &&
    html`<span class=${`plan-bar ${name}`} style=${{ width: `${Math.max(1, Math.sqrt(value / most) * 100)}%` }}>
      </span>`;
  return html`<span class="numbers">
    ${note && html`<small class="soft">${note}</small>`}
    ${off && html`<span class="tag warn"
      title="The estimate is wrong by more than a factor of ten">misestimated</span>`}
    <span class="bars-2" aria-hidden="true">${bar(estimated, 'estimated')}${bar(actual, 'actual')}</span>
    <span class="number">${estimated === undefined ? '' : html`<span class="soft">~${count(estimated)}</span>`}</span>
    <span class="number"><b>${actual === undefined ? '' : count(actual)}</b></span>
    <span class="number soft">${time === undefined ? '' : microseconds(time)}</span>
  </span>`;
}
