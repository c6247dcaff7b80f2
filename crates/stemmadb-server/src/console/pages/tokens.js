// API tokens, for programs.

import { html, useLoad, useState } from '../lib/dom.js';
import { ask, ensureSession, get, post, segment } from '../lib/api.js';
import { time } from '../lib/format.js';
import { Confirm, Dialog, Field, FormDialog, Head, Icon, Loaded } from '../ui/basics.js';
import { Table } from '../ui/table.js';
import { names } from './users.js';

const DAY = 86_400;

export function Tokens() {
  const load = useLoad((signal) => get('/_tokens', {}, { signal }), []);
  const [dialog, setDialog] = useState();
  const [secret, setSecret] = useState();
  const create = async (form) => {
    const body = { name: form.get('name'), read_only: form.get('read_only') === 'on' };
    if (form.get('user')) body.user = form.get('user');
    else body.roles = names(form.get('roles'));
    if (names(form.get('databases')).length > 0) body.databases = names(form.get('databases'));
    if (form.get('days')) body.expires_in_seconds = Math.round(Number(form.get('days')) * DAY);
    await ensureSession();
    setSecret(await post('/_tokens', body));
    load.reload();
  };
  const columns = [
    { name: 'name', label: 'Name', width: 180 },
    {
      name: 'as',
      label: 'Acts as',
      width: 200,
      render: ({ user, roles }) =>
        user ? `user ${user}` : roles.length ? `roles ${roles.join(', ')}` : 'nobody in particular',
    },
    { name: 'databases', label: 'Databases', width: 160, render: ({ databases }) => databases?.join(', ') ?? 'all' },
    { name: 'read_only', label: 'May', width: 110, render: (token) => (token.read_only ? 'read' : 'read and write') },
    { name: 'created', label: 'Created', width: 160, render: ({ created }) => time(created * 1000) },
    {
      name: 'expires',
      label: 'Expires',
      width: 160,
      render: ({ expires }) => (expires ? time(expires * 1000) : 'never'),
    },
    {
      name: 'remove',
      label: html`<span class="hidden">Actions</span>`,
      width: 80,
      align: 'right',
      render: (token) => html`<button class="link" onClick=${() => setDialog({ remove: token })}>Revoke</button>`,
    },
  ];
  return html`<${Head} title="Tokens"><button class="primary" onClick=${() => setDialog({})}><${Icon}
    name="plus" />New token</button><//>
    <${Loaded} load=${load}>${({ tokens }) => html`<${Table} label="Tokens" columns=${columns} rows=${tokens}
      rowKey=${({ id }) => id} empty="There are no tokens." />`}<//>
    ${
      dialog &&
      !dialog.remove &&
      html`<${FormDialog} title="New token" action="Create" onClose=${() => setDialog()} submit=${create}>
      <${Field} label="Name"><input name="name" required autofocus autocomplete="off" spellcheck="false" /><//>
      <${Field} label="User" hint="The token acts as this user. Empty: it has the roles below."><input name="user"
        autocomplete="off" spellcheck="false" /><//>
      <${Field} label="Roles" hint="Separated by commas."><input name="roles" autocomplete="off" spellcheck="false" />
        <//>
      <${Field} label="Databases" hint="Empty: all."><input name="databases" autocomplete="off" spellcheck="false" />
        <//>
      <${Field} label="Days until it expires" hint="Empty: never."><input name="days" type="number" min="0.01"
        step="any" /><//>
      <label class="check"><input type="checkbox" name="read_only" />Only for reading</label>
    <//>`
    }
    ${
      secret &&
      html`<${Dialog} title="The new token" onClose=${() => setSecret()}><div class="dialog-body">
      <p>Copy it now: only its hash is stored, so it can't be shown again.</p><div class="secret">${secret.token}</div>
        </div><//>`
    }
    ${
      dialog?.remove &&
      html`<${Confirm} title="Revoke token" action="Revoke" onClose=${() => setDialog()} submit=${async () => {
        await ensureSession();
        await ask('DELETE', `/_tokens/${segment(dialog.remove.name)}`);
        load.reload();
      }}><p>Programs that use the token <b>${dialog.remove.name}</b> are refused from now on.</p><//>`
    }`;
}
