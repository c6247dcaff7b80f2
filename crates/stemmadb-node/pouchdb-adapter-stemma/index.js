// The adapter `stemma` of PouchDB: `PouchDB.plugin(require('pouchdb-adapter-stemma'))`, then
// `new PouchDB('books', { adapter: 'stemma' })` is the directory `books.stemma`.
'use strict';

const { StemmaPouch } = require('./lib/adapter.js');

module.exports = (PouchDB) => PouchDB.adapter('stemma', StemmaPouch, true);
