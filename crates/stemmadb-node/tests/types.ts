// Compiled, not run: what the type definitions allow.
import { open, Database, Document, StemmaError, Written } from 'stemmadb';

interface Book {
  title: string;
  year: number;
}

export async function use(): Promise<void> {
  await using db: Database = await open('library.stemma', { durability: 'interval', interval: 50 });
  const written: Written = await db.insert<Book>('solaris', { title: 'Solaris', year: 1961 });
  const read: Document<Book> | undefined = await db.get<Book>(written.id);
  if (read) await db.replace({ ...read, year: read.year + 1 });
  for await (const book of db.find<Book>({ year: { $gt: 1960 } }, { sort: '-year', limit: 10 })) {
    const title: string = book.title + book._id + book._rev;
    console.log(title);
  }
  const rows: { title: string }[] = await db.find<{ title: string }>({}, { fields: ['title'] }).toArray();
  const doubled: number = await db.transaction(async (tx) => {
    const book = await tx.get<Book>('solaris');
    await tx.update('solaris', { $inc: { year: 1 } });
    return (book?.year ?? 0) * 2;
  });
  for await (const change of db.changes<Book>({ since: 'now', documents: true })) console.log(change.document?.year);
  for await (const delta of db.watch<Book>({ year: 1961 })) console.log(delta.added[0]?.title, delta.removed.length);
  const file: Buffer | undefined = await db.readFile('solaris', 'cover.png');
  await db.attach('solaris', 'cover.png', file ?? new Uint8Array([1]), { contentType: 'image/png' });
  const past = await db.asOf(new Date());
  const [first] = await db.history<Book>('solaris');
  console.log(rows.length, doubled, await past.sequence(), first?.time?.getTime());
  try {
    await db.delete('solaris', read?._rev);
  } catch (error) {
    if (error instanceof StemmaError && error.code === 'Conflict') console.log(error.hint);
    // @ts-expect-error There is no such code.
    if (error instanceof StemmaError && error.code === 'Unknown') throw error;
  }
  // @ts-expect-error Years are numbers.
  await db.insert<Book>('dune', { title: 'Dune', year: '1965' });
  // @ts-expect-error There is no such option.
  db.find({}, { order: 'year' });
}
