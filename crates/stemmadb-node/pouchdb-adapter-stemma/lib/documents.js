// Documents and revision trees in PouchDB's form.
'use strict';

const { merge } = require('pouchdb-merge');

const LIMIT = 2 ** 31;

/** PouchDB's tree of the branches of a document. With `stored`, replaced revisions that can't be read are missing. */
function revisionTree(branches, stored) {
  let tree = [];
  for (const { deleted, revisions } of branches) {
    // From the root to the leaf, as nested nodes.
    let node;
    let position;
    revisions.forEach((revision, at) => {
      const [generation, hash] = split(revision);
      const isLeaf = at === 0;
      const status = isLeaf || !stored || stored.includes(revision) ? 'available' : 'missing';
      node = [hash, isLeaf && deleted ? { status, deleted } : { status }, node ? [node] : []];
      position = generation;
    });
    tree = merge(tree, { pos: position, ids: node }, LIMIT).tree;
  }
  return tree;
}

function split(revision) {
  const at = revision.indexOf('-');
  return [Number(revision.slice(0, at)), revision.slice(at + 1)];
}

/** What PouchDB keeps beside a document. */
function metadata(id, branches, stored) {
  const [winner] = branches;
  return { id, rev: winner.revisions[0], deleted: winner.deleted, rev_tree: revisionTree(branches, stored) };
}

/** A document that was parsed by `pouchdb-adapter-utils`, as an edit of the native library. */
function edit({ metadata: { id, rev, revisions, deleted }, data }, parent, isNew) {
  const { _attachments, ...body } = data;
  const files = Object.entries(_attachments ?? {}).map(([name, file]) =>
    file.stub
      ? { name }
      : { name, contentType: file.content_type, data: file.data, md5: file.digest.slice(4), revpos: file.revpos },
  );
  const change = { id, deleted: Boolean(deleted), body, files: deleted ? [] : files };
  if (isNew) return { ...change, parent };
  if (!revisions) return { ...change, revisions: [rev] };
  return { ...change, revisions: revisions.ids.map((hash, at) => `${revisions.start - at}-${hash}`) };
}

module.exports = { edit, metadata, revisionTree };
