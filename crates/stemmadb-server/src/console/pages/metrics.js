// The metrics of the server as plots over the time for which this page is open, and requests by route.

import { html, useRef, useState, usePolling } from '../lib/dom.js';
import { respond } from '../lib/api.js';
import { bytes, compact, count, duration, microseconds, rate } from '../lib/format.js';
import { ErrorNote, Head, Loading } from '../ui/basics.js';
import { TimePlot } from '../ui/charts.js';
import { Table } from '../ui/table.js';

const INTERVAL = 2000;
const KEPT = 300;

// The samples of the Prometheus text format: { name: [{ labels, value }] }.
export function parseMetrics(text) {
  const metrics = new Map();
  for (const line of text.split('\n')) {
    const found = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g))
      labels[name] = value.replace(/\\(.)/g, '$1');
    if (!metrics.has(found[1])) metrics.set(found[1], []);
    metrics.get(found[1]).push({ labels, value: Number(found[3]) });
  }
  return metrics;
}

const total = (metrics, name, fits = () => true) =>
  (metrics.get(name) ?? []).filter(({ labels }) => fits(labels)).reduce((sum, { value }) => sum + value, 0);

// The plots: the title, how numbers are shown, and per line a name and a value; `perSecond` for counters.
const PLOTS = [
  {
    title: 'Requests',
    unit: rate,
    perSecond: true,
    lines: [
      ['all', (m) => total(m, 'stemma_requests_total')],
      ['failed', (m) => total(m, 'stemma_requests_total', ({ status }) => status >= '400')],
    ],
  },
  {
    title: 'Mean time until the response begins',
    unit: microseconds,
    lines: [
      [
        'mean',
        (m, before) => {
          const requests = total(m, 'stemma_request_seconds_count') - total(before, 'stemma_request_seconds_count');
          return requests > 0
            ? ((total(m, 'stemma_request_seconds_sum') - total(before, 'stemma_request_seconds_sum')) / requests) * 1e6
            : 0;
        },
      ],
    ],
  },
  {
    title: 'Document changes',
    unit: rate,
    perSecond: true,
    lines: [['changes', (m) => total(m, 'stemma_changes_total')]],
  },
  {
    title: 'Log',
    unit: rate,
    perSecond: true,
    lines: [
      ['writes', (m) => total(m, 'stemma_log_writes_total')],
      ['flushes', (m) => total(m, 'stemma_log_flushes_total')],
    ],
  },
  { title: 'Queries', unit: rate, perSecond: true, lines: [['queries', (m) => total(m, 'stemma_queries_total')]] },
  {
    title: 'Rows that queries read',
    unit: rate,
    perSecond: true,
    lines: [['rows', (m) => total(m, 'stemma_query_rows_read_total')]],
  },
  {
    title: 'Memory',
    unit: bytes,
    lines: [
      ['process', (m) => total(m, 'process_resident_memory_bytes')],
      ['recent writes', (m) => total(m, 'stemma_memtable_bytes')],
    ],
  },
  {
    title: 'Connections and databases',
    unit: compact,
    lines: [
      ['connections', (m) => total(m, 'stemma_connections')],
      ['open databases', (m) => total(m, 'stemma_databases_open')],
    ],
  },
];

function routeRows(metrics) {
  const rows = new Map();
  const row = ({ route, method }) => {
    const key = `${method} ${route}`;
    if (!rows.has(key)) rows.set(key, { key, method, route, requests: 0, failed: 0, seconds: 0 });
    return rows.get(key);
  };
  for (const { labels, value } of metrics.get('stemma_requests_total') ?? []) {
    const found = row(labels);
    found.requests += value;
    if (labels.status >= '400') found.failed += value;
  }
  for (const { labels, value } of metrics.get('stemma_request_seconds_sum') ?? []) row(labels).seconds += value;
  return [...rows.values()].sort((left, right) => right.requests - left.requests);
}

const COLUMNS = [
  { name: 'method', label: 'Method', width: 90 },
  { name: 'route', label: 'Route', width: 320, render: ({ route }) => html`<span class="mono">${route}</span>` },
  { name: 'requests', label: 'Requests', width: 100, align: 'right', render: ({ requests }) => count(requests) },
  { name: 'failed', label: 'Failed', width: 90, align: 'right', render: ({ failed }) => count(failed) },
  {
    name: 'mean',
    label: 'Mean time',
    width: 110,
    align: 'right',
    render: ({ seconds, requests }) => microseconds((seconds / Math.max(requests, 1)) * 1e6),
  },
];

export function Metrics() {
  const [samples, setSamples] = useState([]);
  const [error, setError] = useState();
  const last = useRef();
  usePolling(
    async (signal) => {
      try {
        const metrics = parseMetrics(
          await (await respond('GET', '/_metrics', { headers: { Accept: 'text/plain' }, signal })).text(),
        );
        const now = Date.now();
        const before = last.current;
        last.current = { metrics, now };
        setError(undefined);
        if (!before) {
          setSamples([{ now, metrics, values: [] }]);
          return;
        }
        const seconds = (now - before.now) / 1000;
        const values = PLOTS.map(({ perSecond, lines }) =>
          lines.map(([, value]) =>
            perSecond ? Math.max(0, value(metrics) - value(before.metrics)) / seconds : value(metrics, before.metrics),
          ),
        );
        setSamples((samples) =>
          [
            ...samples.filter(({ values }) => values.length > 0).map(({ now, values }) => ({ now, values })),
            { now, metrics, values },
          ].slice(-KEPT),
        );
      } catch (error) {
        if (!signal.aborted) setError(error);
      }
    },
    INTERVAL,
    [],
  );
  const metrics = samples.at(-1)?.metrics;
  const info = metrics?.get('stemma_info')?.[0].labels.version;
  const facts = metrics
    ? [
        ['Version', info],
        ['Up for', duration(total(metrics, 'stemma_uptime_seconds'))],
        ['Requests', count(total(metrics, 'stemma_requests_total'))],
        ['Databases', count(total(metrics, 'stemma_databases'))],
        ['Log', bytes(total(metrics, 'stemma_log_bytes'))],
      ]
    : [];
  const measured = samples.filter(({ values }) => values.length > 0);
  return html`<${Head} title="Metrics" facts=${facts}><a class="button" href="/_metrics">Prometheus text</a><//>
    <${ErrorNote} error=${error} />
    ${!metrics && !error && html`<${Loading} />`}
    ${metrics && measured.length === 0 && html`<${Loading} what="Measuring" />`}
    ${
      measured.length > 0 &&
      html`<div class="plots">${PLOTS.map(
        ({ title, unit, lines }, at) => html`<${TimePlot} key=${title} title=${title} unit=${unit}
      series=${lines.map(([name], line) => ({
        name,
        values: measured.map(({ now, values }) => [now, values[at][line]]),
      }))} />`,
      )}</div>`
    }
    ${metrics && html`<h2>Requests by route since the start</h2><${Table} label="Requests by route" fit
      columns=${COLUMNS} rows=${routeRows(metrics)} rowKey=${({ key }) => key} />`}`;
}
