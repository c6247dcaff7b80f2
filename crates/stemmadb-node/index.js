// Stemma, an embeddable document database.
'use strict';

const { Database, Snapshot, Transaction, open } = require('./lib/database.js');
const { StemmaError } = require('./lib/errors.js');
const { Find } = require('./lib/find.js');
const { View } = require('./lib/view.js');

module.exports = { Database, Find, Snapshot, StemmaError, Transaction, View, open };
