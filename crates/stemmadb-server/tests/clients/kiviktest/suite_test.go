// Package suite runs kivik's own integration tests (package kiviktest) on a Stemma server, with kivik's expectations
// for CouchDB 3.3 except for what names the server.
//
// STEMMA_URL: the server, with credentials.
package suite

import (
	"context"
	"net/url"
	"os"
	"testing"

	_ "github.com/go-kivik/kivik/v4/couchdb"
	couchdb "github.com/go-kivik/kivik/v4/couchdb/test"
	"github.com/go-kivik/kivik/v4/kiviktest"
)

func TestKivik(t *testing.T) {
	server, err := url.Parse(os.Getenv("STEMMA_URL"))
	if err != nil {
		t.Fatal(err)
	}
	withUser := server.String() + "/"
	anonymous := *server
	anonymous.User = nil
	couchdb.RegisterCouchDBSuites()
	expected := kiviktest.Suite(kiviktest.SuiteCouch33)
	expected["Version.version"] = `^3\.5\.`
	expected["Version.vendor"] = `^Stemma$`
	expected["Version.vendor_version"] = `.`
	expected["Replicate.NotFoundDB"] = anonymous.String() + "/foo"
	expected["Replicate.prefix"] = anonymous.String() + "/"
	expected["Replicate/RW/Admin.prefix"] = withUser
	clients, err := kiviktest.ConnectClients(t, "couch", server.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"_users", "_replicator", "_global_changes"} {
		if err := clients.Admin.CreateDB(context.Background(), name); err != nil {
			t.Fatal(err)
		}
	}
	clients.RW = true
	kiviktest.RunTestsInternal(t, clients, kiviktest.SuiteCouch33)
}
