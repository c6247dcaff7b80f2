// Webhooks and trigger functions of a database: what is called after changes, and how far each is.

import { html, useLoad, usePolling, useState } from '../lib/dom.js';
import { ask, ensureSession, get, isAdmin, post, segment } from '../lib/api.js';
import { ago, cell, count, plural } from '../lib/format.js';
import { parse, stringify } from '../lib/json.js';
import { databaseAddress } from '../lib/router.js';
import { Confirm, ErrorNote, Field, FormDialog, Head, Icon, Loaded, useToast } from '../ui/basics.js';
import { Editor } from '../ui/editor.js';
import { Table } from '../ui/table.js';
import { names } from './users.js';

const INTERVAL = 2000;
const STATES = { running: 'good', failing: 'bad', stopped: 'bad' };

// Which changes a trigger is called for.
const scope = ({ selector, paths = [] }) =>
  [selector && cell(selector), paths.length > 0 && paths.join(', ')].filter(Boolean).join(' and ') || 'all changes';

const actionsLabel = () => html`<span class="hidden">Actions</span>`;
const State = ({ status }) =>
  html`<span class=${`state ${STATES[status.state] ?? 'busy'}`} title=${status.error ?? undefined}>${status.state}</span>`;

export function Triggers({ database, who }) {
  const base = `/${segment(database)}/_triggers`;
  const load = useLoad((signal) => get(base, {}, { signal }), [database]);
  const [dialog, setDialog] = useState();
  const [error, setError] = useState();
  const [toast, say] = useToast();
  usePolling(async () => !dialog && load.reload(), INTERVAL, [!dialog]);
  const mayDefine = isAdmin(who);
  const redeliver = async ({ name }) => {
    setError(undefined);
    try {
      await ensureSession();
      const { redelivered, failed, error } = await post(`${base}/${segment(name)}/_redeliver`, {});
      say(`${plural(redelivered, 'dead letter')} delivered, ${count(failed)} failed${error ? `: ${error}` : ''}.`);
      load.reload();
    } catch (error) {
      setError(error);
    }
  };
  const actions = (trigger) =>
    html`${
      trigger.status.dead_letters > 0 &&
      html`<button class="link" onClick=${() => redeliver(trigger)}>Deliver again</button>${' '}`
    }<button class="link" onClick=${() => setDialog({ remove: trigger })}>Delete</button>`;
  const columns = [
    { name: 'name', label: 'Name', width: 110 },
    { name: 'calls', label: 'Calls', width: 200, render: ({ url, function: name }) => url ?? `function ${name}` },
    { name: 'scope', label: 'For', width: 130, render: scope },
    { name: 'state', label: 'State', width: 95, render: State },
    { name: 'lag', label: 'Behind', width: 75, align: 'right', render: ({ status }) => count(status.lag) },
    { name: 'handled', label: 'Handled', width: 80, align: 'right', render: ({ status }) => count(status.handled) },
    {
      name: 'last',
      label: 'Last',
      width: 90,
      render: ({ status }) => (status.handled_at ? ago(Date.parse(status.handled_at)) : 'never'),
    },
    {
      name: 'dead',
      label: 'Dead letters',
      width: 95,
      align: 'right',
      render: ({ status, dead_letters: letters }) =>
        letters ? html`<a href=${databaseAddress(letters)}>${count(status.dead_letters)}</a>` : '–',
    },
    ...(mayDefine ? [{ name: 'actions', label: actionsLabel(), width: 145, align: 'right', render: actions }] : []),
    { name: 'error', label: 'Error', width: 300, render: ({ status }) => status.error ?? '' },
  ];
  return html`<${Head} title="Triggers" path=${[
    ['Databases', '#/'],
    [database, databaseAddress(database)],
  ]}>${
    mayDefine &&
    html`<button class="primary" onClick=${() => setDialog({})}><${Icon}
    name="plus" />New trigger</button>`
  }<//>
    <p class="soft">A trigger follows the changes of the database: a webhook sends each one to a URL, a trigger function
      of a design document returns documents to write.</p>
    <${ErrorNote} error=${error} />
    <${Loaded} load=${load}>${({ triggers }) => html`<${Table} label="Triggers" columns=${columns}
      rows=${Object.entries(triggers).map(([name, trigger]) => ({ name, ...trigger }))}
      rowKey=${({ name }) => name} onOpen=${mayDefine ? (trigger) => setDialog({ trigger }) : undefined}
      empty="The database has no triggers." />`}<//>
    ${dialog && !dialog.remove && html`<${TriggerDialog} base=${base} trigger=${dialog.trigger}
      close=${() => setDialog()} done=${load.reload} />`}
    ${
      dialog?.remove &&
      html`<${Confirm} title="Delete trigger" action="Delete" onClose=${() => setDialog()} submit=${async () => {
        await ensureSession();
        await ask('DELETE', `${base}/${segment(dialog.remove.name)}`);
        load.reload();
      }}><p><b>${dialog.remove.name}</b> is called no more, and its position is forgotten.</p><//>`
    }
    ${toast}`;
}

// The definition that the form has, as the server takes it.
function definition(form, isWebhook, selector) {
  const body = isWebhook
    ? { url: form.get('url'), secret: form.get('secret') }
    : { function: form.get('function').trim() };
  if (selector.trim()) body.selector = parse(selector);
  const paths = names(form.get('paths'));
  if (paths.length > 0) body.paths = paths;
  if (form.get('attempts')) body.attempts = Number(form.get('attempts'));
  if (form.get('dead_letters')) body.dead_letters = form.get('dead_letters');
  return body;
}

function TriggerDialog({ base, trigger, close, done }) {
  const [kind, setKind] = useState(trigger?.function ? 'function' : 'webhook');
  const [selector, setSelector] = useState(trigger?.selector ? stringify(trigger.selector, 2) : '');
  const isWebhook = kind === 'webhook';
  const save = async (form) => {
    const body = definition(form, isWebhook, selector);
    await ensureSession();
    const name = trigger?.name ?? form.get('name');
    await ask('PUT', `${base}/${segment(name)}`, { text: stringify(body) });
    done();
  };
  return html`<${FormDialog} title=${trigger ? `Trigger ${trigger.name}` : 'New trigger'} action="Save"
    onClose=${close} submit=${save} wide>
    ${!trigger && html`<${Field} label="Name"><input name="name" required autofocus autocomplete="off"
      spellcheck="false" /><//>`}
    <${Field} label="Kind"><select value=${kind} onChange=${(event) => setKind(event.target.value)}>
      <option value="webhook">Webhook</option><option value="function">Function of a design document</option>
    </select><//>
    ${
      isWebhook
        ? html`<${Field} label="URL"><input name="url" type="url" required autocomplete="off" defaultValue=${trigger?.url}
        /><//>
      <${Field} label="Secret" hint=${
        trigger
          ? 'Requests are signed with it. It is never shown: enter it again.'
          : 'Requests are signed with it: at least 16 bytes.'
      }><input name="secret" required autocomplete="off" spellcheck="false" /><//>`
        : html`<${Field} label="Function" hint="Design document/name, such as o/paid."><input name="function" required
        autocomplete="off" spellcheck="false" defaultValue=${trigger?.function} /><//>`
    }
    <div class="field"><span>Only documents that match (optional)</span><${Editor} label="Selector" value=${selector}
      onChange=${setSelector} rows=${4} /></div>
    <${Field} label="Only changes of these paths" hint="Separated by commas, such as _id/mail/+. Empty: all."><input
      name="paths" autocomplete="off" spellcheck="false" defaultValue=${trigger?.paths?.join(', ')} /><//>
    <div class="columns-2">
      <${Field} label="Attempts" hint="Empty: without end."><input name="attempts" type="number" min="1"
        defaultValue=${trigger?.attempts} /><//>
      <${Field} label="Database of dead letters" hint="For changes whose attempts all fail."><input name="dead_letters"
        autocomplete="off" spellcheck="false" defaultValue=${trigger?.dead_letters} /><//>
    </div>
  <//>`;
}
