// What a database takes, and what can be done with it as a whole: compaction, backups, branches, deletion.

import { html, useLoad, usePolling, useState } from '../lib/dom.js';
import { ask, ensureSession, get, isAdmin, post, segment } from '../lib/api.js';
import { bytes, count, duration, time } from '../lib/format.js';
import { databaseAddress, go } from '../lib/router.js';
import { ErrorNote, Field, FormDialog, Head, Loaded, useToast } from '../ui/basics.js';
import { DeleteDatabase } from './databases.js';

const List = ({ facts }) =>
  html`<dl class="list">${facts.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

function Meter({ label, part, whole }) {
  const share = whole > 0 ? Math.min(1, part / whole) : 0;
  return html`<div><div class="meter" role="img" aria-label=${`${label}: ${Math.round(share * 100)} %`}><span
    style=${{ width: `${share * 100}%` }}></span></div>
    <small class="soft">${label}: ${bytes(part)} of ${bytes(whole)}</small></div>`;
}

async function loadAll(database, signal) {
  const base = `/${segment(database)}`;
  const [statistics, info] = await Promise.all([get(`${base}/_statistics`, {}, { signal }), get(base, {}, { signal })]);
  return { ...statistics, info };
}

export function Settings({ database, who }) {
  const load = useLoad((signal) => loadAll(database, signal), [database]);
  const [dialog, setDialog] = useState();
  const [error, setError] = useState();
  const [toast, say] = useToast();
  const base = `/${segment(database)}`;
  usePolling(async () => load.data?.compacting && load.reload(), 2000, [load.data]);
  const act = (does, message) => async () => {
    setError(undefined);
    try {
      await ensureSession();
      const answer = await does();
      say(message(answer));
      load.reload();
    } catch (error) {
      setError(error);
    }
  };
  const compact = act(
    () => post(`${base}/_compact`, {}),
    () => 'The compaction has begun.',
  );
  const backUp = act(
    () => post(`${base}/_backup`, {}),
    ({ backup, total_bytes: total, copied_bytes: copied }) =>
      `Backup ${backup} is made: ${bytes(total)}, of which ${bytes(copied)} were copied.`,
  );
  return html`<${Head} title="Size and care" path=${[
    ['Databases', '#/'],
    [database, databaseAddress(database)],
  ]}>
      <button onClick=${load.reload}>Refresh</button>
      <button onClick=${compact}>Compact</button>
      ${
        isAdmin(who) &&
        html`<button onClick=${backUp}>Back up</button><button onClick=${() => setDialog('branch')}>Branch …</button>
        <button class="danger" onClick=${() => setDialog('delete')}>Delete …</button>`
      }
    <//>
    <${ErrorNote} error=${error} />
    <${Loaded} load=${load}>${(data) => html`<div class="cards">
      <section class="panel"><h2>Documents</h2><${List} facts=${[
        ['Live', count(data.documents.live)],
        ['Deleted', count(data.documents.deleted)],
        ['Paths', count(data.index.paths)],
        ['Shapes', count(data.index.shapes)],
        ['Revisions', `${count(data.revs_limit)} of each branch`],
      ]} /></section>
      <section class="panel"><h2>Log</h2><${Meter} label="Needed" part=${data.log.live_bytes} whole=${data.log.bytes} />
        <${List} facts=${[
          ['Segments', count(data.log.segments)],
          ['Writes', count(data.log.writes)],
          ['Flushes', count(data.log.flushes)],
          ['History', bytes(data.log.history_bytes)],
          ['Durability', data.durability],
          ['State', data.compacting ? 'compacting' : 'ready'],
        ]} /></section>
      <section class="panel"><h2>Indexes</h2><${Meter} label="Needed" part=${data.tree.live_bytes}
        whole=${data.tree.bytes} />
        <${List} facts=${[
          ['Held', `${bytes(data.tree.held_bytes)} by snapshots`],
          [
            'Oldest',
            data.tree.oldest_snapshot ? `snapshot of ${duration(data.tree.oldest_snapshot.age_s)} ago` : 'no snapshot',
          ],
          ['Declared', count(data.declared_indexes.length)],
          ['Views', count(data.view_count)],
          ['Writers waited', `${count(data.tree.writers_waited)} times`],
          ['Memory', bytes(data.memory_bytes)],
        ]} /></section>
      <section class="panel"><h2>Queries</h2>${
        Object.keys(data.queries).length === 0
          ? html`<p class="soft">None since the server started.</p>`
          : html`<table aria-label="Queries"><thead><tr><th scope="col">Kind</th><th scope="col"
            class="right">Number</th><th scope="col" class="right">Rows read</th></tr></thead>
          <tbody>${Object.entries(data.queries).map(([kind, figures]) => html`<tr><td>${kind}</td><td class="right">
            ${count(figures.count)}</td><td class="right">${count(figures.rows_read)}</td></tr>`)}</tbody></table>`
      }</section>
      <section class="panel"><h2>Past</h2><${List} facts=${[
        ['Retention', Object.keys(data.history.retention).length ? JSON.stringify(data.history.retention) : 'none'],
        ['Since', data.history.oldest_time_us ? time(data.history.oldest_time_us / 1000) : 'the beginning'],
        ['Pins', Object.keys(data.history.pins).join(', ') || 'none'],
      ]} />
        <div class="actions"><button onClick=${() => setDialog('retention')}>Retention …</button><a
          href=${databaseAddress(database, 'time')}>Travel in time</a></div></section>
      ${
        data.info.backup &&
        html`<section class="panel"><h2>Continuous backup</h2><${List} facts=${[
          ['Target', data.info.backup.target],
          ['State', data.info.backup.running ? 'running' : 'stopped'],
          ['Behind', `${duration(data.info.backup.lag_seconds)}, ${count(data.info.backup.lag_sequences)} changes`],
          ['Error', data.info.backup.error ?? 'none'],
        ]} /></section>`
      }
    </div>`}<//>
    ${dialog === 'delete' && html`<${DeleteDatabase} name=${database} close=${() => setDialog()} />`}
    ${
      dialog === 'branch' &&
      html`<${FormDialog} title="Branch" action="Create" onClose=${() => setDialog()} submit=${async (form) => {
        await ensureSession();
        const body = { name: form.get('name') };
        if (form.get('at')) body.at = form.get('at');
        await ask('POST', `${base}/_branch`, { body });
        go(databaseAddress(body.name));
      }}>
      <p>Creates a database with the state of this one, which shares its files at first.</p>
      <${Field} label="Name of the new database"><input name="name" required autofocus autocomplete="off"
        spellcheck="false" /><//>
      <${Field} label="As of" hint="A sequence, a time such as 2026-11-24T12:00:00Z, or -2h. Empty: now."><input
        name="at" autocomplete="off" /><//>
    <//>`
    }
    ${
      dialog === 'retention' &&
      html`<${FormDialog} title="Retention" action="Save" onClose=${() => setDialog()} submit=${async (form) => {
        await ensureSession();
        await ask('PUT', `${base}/_retention`, { body: { retention: retentionOf(form) } });
        say('The retention is saved.');
        load.reload();
      }}>
      <p>How much of the past is kept from now on. What a smaller retention does not cover is removed for good.</p>
      <${Field} label="Keep"><select name="kind" autofocus>
        ${Object.entries(KEPT).map(
          ([kind, label]) =>
            html`<option value=${kind} selected=${kind in load.data.history.retention}>${label}</option>`,
        )}
      </select><//>
      <${Field} label="Number" hint="Of days, revisions or bytes."><input name="number" type="number" min="1" step="any"
        value=${numberOf(load.data.history.retention)} /><//>
    <//>`
    }
    ${toast}`;
}

const KEPT = {
  nothing: 'nothing',
  seconds: 'the last days',
  revisions: 'replaced revisions of each document',
  bytes: 'bytes of history',
  everything: 'everything',
};
const DAY = 86400;

// The number that the form shows for a retention.
function numberOf({ seconds, revisions, bytes }) {
  return seconds === undefined ? (revisions ?? bytes ?? '') : seconds / DAY;
}

function retentionOf(form) {
  const kind = form.get('kind');
  if (kind === 'nothing') return {};
  if (kind === 'everything') return { everything: true };
  const number = Number(form.get('number'));
  if (!(number > 0)) throw new Error('Enter a number above 0.');
  return { [kind]: kind === 'seconds' ? Math.round(number * DAY) : Math.round(number) };
}
