// The data of the console's tests.
'use strict';

const AUTHORS = ['Austen', 'Lem', 'Le Guin', 'Calvino', 'Borges'];
const CITIES = ['London', 'Warsaw', 'Paris', 'Milan'];
const TAGS = ['novel', 'essay', 'sea', 'robots', 'city'];

const book = (n) => ({
  title: `Title ${n}`,
  author: AUTHORS[n % AUTHORS.length],
  year: 1790 + ((n * 37) % 230),
  pages: 80 + ((n * 53) % 700),
  tags: [TAGS[n % 5], TAGS[(n * 3 + 1) % 5]],
  publisher: { name: `Publisher ${n % 7}`, city: CITIES[n % 4] },
  in_print: n % 3 !== 0,
});

// Writes a document with a winning branch of five revisions, and two conflicting ones.
async function branch(ask, id) {
  const body = { title: 'Solaris', author: 'Lem', year: 1960, pages: 204, tags: ['novel', 'sea'], in_print: true };
  let { rev } = await ask('PUT', `books/${id}`, body);
  ({ rev } = await ask('PUT', `books/${id}`, { ...body, _rev: rev, year: 1961 }));
  ({ rev } = await ask('PUT', `books/${id}`, { ...body, _rev: rev, year: 1961, publisher: { name: 'MON', city: 'Warsaw' } }));
  const { ids } = (await ask('GET', `books/${id}?revs=true`))._revisions;
  const replicated = (generation, hash, ancestors, fields) => ask('POST', 'books/_bulk_docs', {
    new_edits: false,
    docs: [{ ...body, year: 1961, ...fields, _id: id, _rev: `${generation}-${hash}`, _revisions: { start: generation, ids: [hash, ...ancestors] } }],
  });
  const [kilmartin, johnston, other, early] = ['b', 'c', 'd', 'e'].map((letter) => letter.repeat(32));
  await replicated(4, kilmartin, ids, { translator: 'Joanna Kilmartin', pages: 210 });
  await replicated(5, johnston, [kilmartin, ...ids], { translator: 'Bill Johnston', pages: 211 });
  await replicated(4, other, ids, { pages: 999, edition: 'second' });
  await replicated(3, early, ids.slice(1), { in_print: false });
}

async function fill(ask) {
  await ask('PUT', 'books');
  await ask('POST', 'books/_bulk_docs', { docs: Array.from({ length: 203 }, (_, n) => ({ _id: `book-${String(n).padStart(4, '0')}`, ...book(n) })) });
  await ask('PUT', 'books/_design/d', { views: { by_author: { map: 'function (doc) { if (doc.author) emit(doc.author, doc.pages); }', reduce: '_stats' } } });
  await branch(ask, 'solaris');
}

module.exports = { book, branch, fill };
