// Users: the documents of the database `_users`.

import { html, useLoad, useState } from '../lib/dom.js';
import { ask, ensureSession, get, segment } from '../lib/api.js';
import { revision } from '../lib/format.js';
import { Confirm, Field, FormDialog, Head, Icon, Loaded } from '../ui/basics.js';
import { Table } from '../ui/table.js';

const PREFIX = 'org.couchdb.user:';
const path = (name) => `/_users/${segment(PREFIX + name)}`;
export const names = (text) =>
  text
    .split(',')
    .map((name) => name.trim())
    .filter(Boolean);

async function loadUsers(signal) {
  const range = { include_docs: true, startkey: JSON.stringify(PREFIX), endkey: JSON.stringify(`${PREFIX}\ufff0`) };
  try {
    return (await get('/_users/_all_docs', range, { signal })).rows.map(({ doc }) => doc);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

export function Users() {
  const load = useLoad(loadUsers, []);
  const [dialog, setDialog] = useState();
  const createDatabase = async () => {
    await ensureSession();
    await ask('PUT', '/_users');
    load.reload();
  };
  const save = async (form) => {
    const before = dialog.user;
    const name = before?.name ?? form.get('name');
    const body = { ...before, name, type: 'user', roles: names(form.get('roles')) };
    if (form.get('password')) body.password = form.get('password');
    await ensureSession();
    await ask('PUT', path(name), { body });
    load.reload();
  };
  const columns = [
    {
      name: 'name',
      label: 'Name',
      width: 200,
      render: (user) => html`<button class="link" onClick=${() => setDialog({ user })}>${user.name}</button>`,
    },
    { name: 'roles', label: 'Roles', width: 260, render: ({ roles }) => (roles ?? []).join(', ') },
    {
      name: 'rev',
      label: 'Revision',
      width: 110,
      render: ({ _rev }) => html`<span class="mono soft">${revision(_rev)}</span>`,
    },
    {
      name: 'remove',
      label: html`<span class="hidden">Actions</span>`,
      width: 80,
      align: 'right',
      render: (user) => html`<button class="link" onClick=${() => setDialog({ remove: user })}>Delete</button>`,
    },
  ];
  return html`<${Head} title="Users">
      <button class="primary" disabled=${!load.data} onClick=${() => setDialog({})}><${Icon}
        name="plus" />New user</button>
    <//>
    <${Loaded} load=${load}>${(users) =>
      users === null
        ? html`<div class="empty">There is no database of users yet. <button
          onClick=${createDatabase}>Create _users</button></div>`
        : html`<${Table} label="Users" columns=${columns} rows=${users} rowKey=${({ _id }) => _id}
          onOpen=${(user) => setDialog({ user })} empty="There are no users besides the administrators." />`}<//>
    ${
      dialog &&
      !dialog.remove &&
      html`<${FormDialog} title=${dialog.user ? `User ${dialog.user.name}` : 'New user'} action="Save"
        onClose=${() => setDialog()} submit=${save}>
      ${!dialog.user && html`<${Field} label="Name"><input name="name" required autofocus autocomplete="off"
        spellcheck="false" /><//>`}
      <${Field} label=${dialog.user ? 'New password' : 'Password'}
        hint=${dialog.user ? 'Empty: the password stays.' : ''}><input name="password" type="password"
          required=${!dialog.user} autocomplete="new-password" /><//>
      <${Field} label="Roles" hint="Separated by commas."><input name="roles"
        defaultValue=${(dialog.user?.roles ?? []).join(', ')} autocomplete="off" spellcheck="false" /><//>
    <//>`
    }
    ${
      dialog?.remove &&
      html`<${Confirm} title="Delete user" action="Delete" onClose=${() => setDialog()} submit=${async () => {
        await ensureSession();
        await ask('DELETE', `${path(dialog.remove.name)}?rev=${dialog.remove._rev}`);
        load.reload();
      }}><p>The user <b>${dialog.remove.name}</b> is deleted; their sessions and feeds end.</p><//>`
    }`;
}
