// Package suite tests kivik with a Stemma server: it compares contents, not only the success of calls.
//
// STEMMA_URL: the server, with credentials.
package suite

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	kivik "github.com/go-kivik/kivik/v4"
	"github.com/go-kivik/kivik/v4/couchdb"
)

var made int

func client(t *testing.T) *kivik.Client {
	t.Helper()
	server, err := url.Parse(os.Getenv("STEMMA_URL"))
	must(t, err)
	password, _ := server.User.Password()
	basic := couchdb.BasicAuth(server.User.Username(), password)
	server.User = nil
	client, err := kivik.New("couch", server.String(), basic)
	must(t, err)
	return client
}

func fresh(t *testing.T) *kivik.DB {
	t.Helper()
	made++
	name := fmt.Sprintf("kivik_%d_%d", os.Getpid(), made)
	c := client(t)
	must(t, c.CreateDB(context.Background(), name))
	t.Cleanup(func() { _ = c.DestroyDB(context.Background(), name) })
	return c.DB(name)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, found, expected any) {
	t.Helper()
	if !reflect.DeepEqual(found, expected) {
		t.Fatalf("found %#v, expected %#v", found, expected)
	}
}

func status(t *testing.T, err error, expected int) {
	t.Helper()
	if kivik.HTTPStatus(err) != expected {
		t.Fatalf("found %v, expected status %d", err, expected)
	}
}

type doc struct {
	ID  string `json:"_id"`
	Rev string `json:"_rev,omitempty"`
	N   int    `json:"n"`
}

func TestServer(t *testing.T) {
	ctx := context.Background()
	c := client(t)
	version, err := c.Version(ctx)
	must(t, err)
	equal(t, version.Vendor, "Stemma")
	up, err := c.Ping(ctx)
	must(t, err)
	equal(t, up, true)
	must(t, c.CreateDB(ctx, "kivik_a"))
	status(t, c.CreateDB(ctx, "kivik_a"), http.StatusPreconditionFailed)
	exists, err := c.DBExists(ctx, "kivik_a")
	must(t, err)
	equal(t, exists, true)
	names, err := c.AllDBs(ctx)
	must(t, err)
	if !strings.Contains(strings.Join(names, " "), "kivik_a") {
		t.Fatal(names)
	}
	must(t, c.DestroyDB(ctx, "kivik_a"))
	status(t, c.DestroyDB(ctx, "kivik_a"), http.StatusNotFound)
}

func TestDocuments(t *testing.T) {
	ctx := context.Background()
	db := fresh(t)
	first, err := db.Put(ctx, "a/ü b", doc{ID: "a/ü b", N: 1})
	must(t, err)
	var read doc
	must(t, db.Get(ctx, "a/ü b").ScanDoc(&read))
	equal(t, read, doc{"a/ü b", first, 1})
	rev, err := db.GetRev(ctx, "a/ü b")
	must(t, err)
	equal(t, rev, first)
	second, err := db.Put(ctx, "a/ü b", doc{ID: "a/ü b", Rev: first, N: 2})
	must(t, err)
	_, err = db.Put(ctx, "a/ü b", doc{ID: "a/ü b", Rev: first, N: 3})
	status(t, err, http.StatusConflict)
	copied, err := db.Copy(ctx, "copy", "a/ü b")
	must(t, err)
	must(t, db.Get(ctx, "copy").ScanDoc(&read))
	equal(t, read, doc{"copy", copied, 2})
	id, _, err := db.CreateDoc(ctx, map[string]int{"n": 7})
	must(t, err)
	must(t, db.Get(ctx, id).ScanDoc(&read))
	equal(t, read.N, 7)
	_, err = db.Delete(ctx, "a/ü b", second)
	must(t, err)
	status(t, db.Get(ctx, "a/ü b").Err(), http.StatusNotFound)
	_, err = db.Put(ctx, "_local/x", map[string]int{"n": 1})
	must(t, err)
	must(t, db.Get(ctx, "_local/x").ScanDoc(&read))
	equal(t, read, doc{"_local/x", "0-1", 1})
	stats, err := db.Stats(ctx)
	must(t, err)
	equal(t, []int64{stats.DocCount, stats.DeletedCount}, []int64{2, 1})
}

func TestBulkAndListing(t *testing.T) {
	ctx := context.Background()
	db := fresh(t)
	var docs []any
	for n := range 30 {
		docs = append(docs, doc{ID: fmt.Sprintf("d%02d", n), N: n})
	}
	results, err := db.BulkDocs(ctx, docs)
	must(t, err)
	equal(t, len(results), 30)
	results, err = db.BulkDocs(ctx, []any{doc{ID: "d00"}, doc{ID: "new"}})
	must(t, err)
	status(t, results[0].Error, http.StatusConflict)
	must(t, results[1].Error)
	rows := db.AllDocs(ctx, kivik.Params(map[string]any{
		"include_docs": true, "startkey": "d10", "endkey": "d12", "descending": false,
	}))
	var found []int
	for rows.Next() {
		var row doc
		must(t, rows.ScanDoc(&row))
		found = append(found, row.N)
	}
	must(t, rows.Err())
	equal(t, found, []int{10, 11, 12})
	meta, err := rows.Metadata()
	must(t, err)
	equal(t, []int64{meta.TotalRows, meta.Offset}, []int64{31, 10})
	got := db.BulkGet(ctx, []kivik.BulkGetReference{{ID: "d03"}, {ID: "nothing"}})
	var errors, fine int
	for got.Next() {
		var row doc
		if err := got.ScanDoc(&row); err != nil {
			equal(t, err.Error(), "not_found: missing")
			errors++
			continue
		}
		equal(t, row.N, 3)
		fine++
	}
	equal(t, []int{fine, errors}, []int{1, 1})
	diffs := db.RevsDiff(ctx, map[string][]string{"d03": {"2-" + strings.Repeat("a", 32)}})
	for diffs.Next() {
		var diff kivik.RevDiff
		must(t, diffs.ScanValue(&diff))
		equal(t, diff.Missing, []string{"2-" + strings.Repeat("a", 32)})
		equal(t, len(diff.PossibleAncestors), 1)
	}
	must(t, diffs.Err())
}

func TestFiles(t *testing.T) {
	ctx := context.Background()
	db := fresh(t)
	large := bytes.Repeat([]byte("0123456789"), 50000)
	first, err := db.Put(ctx, "doc", map[string]any{"n": 1})
	must(t, err)
	second, err := db.PutAttachment(ctx, "doc", &kivik.Attachment{
		Filename: "a/large ü.txt", ContentType: "text/plain", Content: io.NopCloser(bytes.NewReader(large)),
	}, kivik.Rev(first))
	must(t, err)
	file, err := db.GetAttachment(ctx, "doc", "a/large ü.txt")
	must(t, err)
	content, err := io.ReadAll(file.Content)
	must(t, err)
	equal(t, bytes.Equal(content, large), true)
	head, err := db.GetAttachmentMeta(ctx, "doc", "a/large ü.txt")
	must(t, err)
	equal(t, []any{head.ContentType, head.Size}, []any{"text/plain", int64(len(large))})
	// The document with all files, in one multipart message.
	read := db.Get(ctx, "doc", kivik.Param("attachments", true))
	files, err := read.Attachments()
	must(t, err)
	next, err := files.Next()
	must(t, err)
	content, err = io.ReadAll(next.Content)
	must(t, err)
	equal(t, bytes.Equal(content, large), true)
	_, err = files.Next()
	equal(t, err, io.EOF)
	// A document with its files, in one multipart message.
	attachments := kivik.Attachments{"x": &kivik.Attachment{
		Filename: "x", ContentType: "text/plain", Content: io.NopCloser(strings.NewReader("an ocean")),
	}}
	_, err = db.Put(ctx, "multi", map[string]any{"_attachments": &attachments, "n": 2})
	must(t, err)
	file, err = db.GetAttachment(ctx, "multi", "x")
	must(t, err)
	content, err = io.ReadAll(file.Content)
	must(t, err)
	equal(t, string(content), "an ocean")
	_, err = db.DeleteAttachment(ctx, "doc", second, "a/large ü.txt")
	must(t, err)
	_, err = db.GetAttachment(ctx, "doc", "a/large ü.txt")
	status(t, err, http.StatusNotFound)
}

func TestChanges(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	db := fresh(t)
	for n := range 5 {
		_, err := db.Put(ctx, fmt.Sprintf("d%d", n), map[string]int{"n": n})
		must(t, err)
	}
	changes := db.Changes(ctx, kivik.Param("include_docs", true))
	var found []int
	for changes.Next() {
		var row doc
		must(t, changes.ScanDoc(&row))
		found = append(found, row.N)
	}
	must(t, changes.Err())
	equal(t, found, []int{0, 1, 2, 3, 4})
	meta, err := changes.Metadata()
	must(t, err)
	follow := db.Changes(ctx, kivik.Params(map[string]any{"feed": "continuous", "since": meta.LastSeq, "heartbeat": 200}))
	defer follow.Close()
	_, err = db.Put(ctx, "late", map[string]int{"n": 9})
	must(t, err)
	equal(t, follow.Next(), true)
	equal(t, follow.ID(), "late")
}

func TestMango(t *testing.T) {
	ctx := context.Background()
	db := fresh(t)
	for n := range 20 {
		_, err := db.Put(ctx, fmt.Sprintf("d%02d", n), map[string]int{"n": n})
		must(t, err)
	}
	must(t, db.CreateIndex(ctx, "mine", "by n", map[string]any{"fields": []string{"n"}}))
	indexes, err := db.GetIndexes(ctx)
	must(t, err)
	equal(t, []string{indexes[0].Name, indexes[1].Name, indexes[1].DesignDoc}, []string{"_all_docs", "by n", "_design/mine"})
	rows := db.Find(ctx, map[string]any{"selector": map[string]any{"n": map[string]int{"$gte": 17}}, "sort": []string{"n"}})
	var found []int
	for rows.Next() {
		var row doc
		must(t, rows.ScanDoc(&row))
		found = append(found, row.N)
	}
	must(t, rows.Err())
	equal(t, found, []int{17, 18, 19})
	plan, err := db.Explain(ctx, map[string]any{"selector": map[string]int{"n": 3}})
	must(t, err)
	equal(t, plan.Index["name"], any("by n"))
	must(t, db.DeleteIndex(ctx, "mine", "by n"))
}

func TestSecurity(t *testing.T) {
	ctx := context.Background()
	db := fresh(t)
	wanted := &kivik.Security{Admins: kivik.Members{Names: []string{"ada"}}, Members: kivik.Members{Roles: []string{"staff"}}}
	must(t, db.SetSecurity(ctx, wanted))
	found, err := db.Security(ctx)
	must(t, err)
	equal(t, []any{found.Admins.Names, found.Members.Roles}, []any{wanted.Admins.Names, wanted.Members.Roles})
	must(t, db.Compact(ctx))
	must(t, db.ViewCleanup(ctx))
	must(t, db.Flush(ctx))
}
