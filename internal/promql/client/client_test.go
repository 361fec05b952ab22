// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/series"
)

var t0 = time.Unix(1_800_000_000, 0)

// client asks a backend that answers with h, at t0.
func client(t *testing.T, cfg Config, h http.HandlerFunc) *Client {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	cfg.URL, cfg.Timeout = srv.URL+"/prom", cmp.Or(cfg.Timeout, time.Minute)
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.now = func() time.Time { return t0 }
	return c
}

func data(kind, result string) string {
	return fmt.Sprintf(`{"status": "success", "data": {"resultType": %q, "result": %s}}`, kind, result)
}

// A backend cannot send the client, which has credentials, to another address.
func TestRedirects(t *testing.T) {
	asked := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		fmt.Fprint(w, data("scalar", `[1800000000, "6"]`))
	}))
	t.Cleanup(other.Close)
	for _, status := range []int{http.StatusFound, http.StatusTemporaryRedirect} {
		c := client(t, Config{}, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+r.URL.Path, status) })
		if v, err := c.Query(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "is refused") || asked > 0 {
			t.Errorf("status %d: %v, %v, %d requests to another address", status, v, err, asked)
		}
		var failure *Error
		if _, err := c.Query(t.Context(), "x"); !errors.As(err, &failure) || strings.Contains(failure.Public(), "127.0.0.1") {
			t.Errorf("status %d: tenants see %v", status, err)
		}
	}
	c := client(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/prom/new/") {
			http.Redirect(w, r, strings.Replace(r.URL.Path, "/prom/", "/prom/new/", 1), http.StatusTemporaryRedirect)
			return
		}
		fmt.Fprint(w, data("scalar", `[1800000000, "7"]`))
	})
	if s, err := c.Query(t.Context(), "x"); err != nil || s.Value != 7 {
		t.Errorf("within the address: %v, %v", s, err)
	}
}

func TestOneNumber(t *testing.T) {
	f := func(name, answer string, want float64, says string) {
		t.Helper()
		c := client(t, Config{}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
		s, err := c.Query(t.Context(), "x")
		if says == "" {
			if err != nil || s.Value != want || !s.At.Equal(t0) {
				t.Errorf("%s: %+v, %v; want %v", name, s, err, want)
			}
			return
		}
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v; want an error that says %q", name, s, err, says)
		}
	}
	f("a scalar", data("scalar", `[1800000000, "2.5"]`), 2.5, "")
	f("a vector of one", data("vector", `[{"metric": {}, "value": [1800000000, "0"]}]`), 0, "")
	f("nothing", data("vector", `[]`), 0, "no series matches")
	f("several", data("vector", `[{"metric": {"job": "a"}, "value": [1800000000, "1"]}, {"metric": {}, "value": [1800000000, "2"]}]`), 0, `several series, such as {job="a"}`)
	f("NaN", data("vector", `[{"metric": {}, "value": [1800000000, "NaN"]}]`), 0, "returns NaN")
	f("infinite", data("scalar", `[1800000000, "+Inf"]`), 0, "returns +Inf")
	f("old", data("vector", `[{"metric": {}, "value": [1799999879.999, "1"]}]`), 0, "older than 2m0s")
	f("a histogram", data("vector", `[{"metric": {}, "histogram": [1800000000, {"count": "1", "sum": "1", "buckets": []}]}]`), 0, "returns a histogram")
	f("a range", data("matrix", `[]`), 0, "returns a matrix")
	f("an error", `{"status": "error", "errorType": "bad_data", "error": "parse error: unexpected end of input"}`, 0, "unexpected end of input")
	f("not JSON", "<html>", 0, "not that of a PromQL backend")
	f("empty", "", 0, "not that of a PromQL backend")
	f("endless", strings.Repeat(" ", 1<<20+2), 0, "longer than 1048576 bytes")
}

func TestRange(t *testing.T) {
	f := func(name, answer string, want []series.Sample, says string) {
		t.Helper()
		c := client(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/prom/api/v1/query_range" || r.FormValue("step") != "60" || r.FormValue("end") != "1800000120" {
				t.Errorf("%s: asked %s?%s", name, r.URL.Path, r.Form.Encode())
			}
			fmt.Fprint(w, answer)
		})
		got, err := c.Range(t.Context(), "x", t0, t0.Add(2*time.Minute), time.Minute)
		if says != "" && (err == nil || !strings.Contains(err.Error(), says)) || says == "" && err != nil {
			t.Errorf("%s: %v, want an error that says %q", name, err, says)
		}
		if !slices.EqualFunc(got, want, func(a, b series.Sample) bool { return a.At.Equal(b.At) && a.Value == b.Value }) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	f("a series with a hole", data("matrix", `[{"metric": {}, "values": [[1800000000, "2.5"], [1800000120, "0"]]}]`),
		[]series.Sample{{At: t0, Value: 2.5}, {At: t0.Add(2 * time.Minute)}}, "")
	f("nothing", data("matrix", `[]`), nil, "")
	f("several", data("matrix", `[{"metric": {"job": "a"}}, {"metric": {}}]`), nil, `2 series, such as {job="a"}`)
	f("a vector", data("vector", `[]`), nil, "not a range of values")
	f("an error", `{"status": "error", "errorType": "bad_data", "error": "bad query"}`, nil, "bad query")
	f("not JSON", "<html>", nil, "not that of a PromQL backend")
	for _, values := range []string{`[["x", "1"]]`, `[[1e300, "1"]]`, `[[1, "1"], [2, 2]]`} {
		f(values, data("matrix", `[{"values": `+values+`}]`), nil, "not that of a PromQL backend")
	}
	f("endless", strings.Repeat(" ", 1<<20+2), nil, "longer than 1048576 bytes")
}

// A matrix has all series, with their labels. Values may be NaN.
func TestMatrix(t *testing.T) {
	f := func(name, answer, want, says string) {
		t.Helper()
		c := client(t, Config{}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) })
		got, err := c.Matrix(t.Context(), "x", t0, t0.Add(time.Minute), time.Minute)
		text := ""
		for _, s := range got {
			text += fmt.Sprint(s.Labels)
			for _, p := range s.Samples {
				text += fmt.Sprintf(" %v@%d", p.Value, p.At.Unix())
			}
			text += "; "
		}
		if text != want || says != "" && (err == nil || !strings.Contains(err.Error(), says)) || says == "" && err != nil {
			t.Errorf("%s: %s, %v; want %s %q", name, text, err, want, says)
		}
	}
	f("two series", data("matrix", `[{"metric": {"a": "b", "c": "d"}, "values": [[1800000000, "1"], [1800000060, "NaN"]]}, {"metric": {}, "values": [[1800000060, "0"]]}]`),
		"map[a:b c:d] 1@1800000000 NaN@1800000060; map[] 0@1800000060; ", "")
	f("nothing", data("matrix", `[]`), "", "")
	f("a vector", data("vector", `[]`), "", "not a range of values")
	f("an error", `{"status": "error", "errorType": "bad_data", "error": "bad query"}`, "", "bad query")
}

// Only for errors that a shorter range can mend is a query tried again in parts.
func TestIsTooMuch(t *testing.T) {
	f := func(want bool, code int, body string) {
		t.Helper()
		c := client(t, Config{MaxAnswer: 200}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		})
		_, err := c.Range(t.Context(), "x", t0, t0.Add(time.Minute), time.Minute)
		if err == nil || IsTooMuch(err) != want || IsTooMuch(fmt.Errorf("read: %w", err)) != want {
			t.Errorf("%d %.40s: %v is too much: %v", code, body, err, !want)
		}
	}
	f(true, 422, `{"status": "error", "errorType": "execution", "error": "query processing would load too many samples into memory in query execution"}`)
	f(true, 503, `{"status": "error", "errorType": "timeout", "error": "query timed out"}`)
	f(true, 200, strings.Repeat(" ", 201))
	f(false, 200, strings.Repeat(" ", 200))
	f(false, 400, `{"status": "error", "errorType": "bad_data", "error": "parse error"}`)
	f(false, 503, "")
	f(false, 200, data("vector", `[]`))
	if IsTooMuch(errors.New("too many samples")) {
		t.Error("an error of something else is too much")
	}
}

func TestErrors(t *testing.T) {
	f := func(code int, body, says string) {
		t.Helper()
		c := client(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		})
		if _, err := c.Query(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%d: %v, want an error that says %q", code, err, says)
		}
	}
	f(http.StatusBadRequest, `{"status": "error", "errorType": "bad_data", "error": "invalid parameter"}`, "invalid parameter")
	f(http.StatusUnauthorized, "who are you", "client error: 401")
	f(http.StatusServiceUnavailable, "", "server error: 503")

	c, err := New(Config{URL: "http://127.0.0.1:1/"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Query(t.Context(), strings.Repeat("x", 1000)); err == nil || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "/api/v1/") {
		t.Errorf("nobody answers: %v", err)
	}
	for _, bad := range []string{"", "prometheus:9090", "ftp://x", "http://"} {
		if _, err := New(Config{URL: bad}); err == nil || !strings.Contains(err.Error(), "such as http://prometheus:9090") {
			t.Errorf("address %q: %v", bad, err)
		}
	}
}

func TestTimeout(t *testing.T) {
	hang := make(chan struct{})
	c := client(t, Config{Timeout: 50 * time.Millisecond}, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	defer close(hang)
	if _, err := c.Query(t.Context(), "x"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no answer within 50ms") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Query(ctx, "x"); err == nil {
		t.Error("a query that was given up gave a value")
	}
	if c, err := New(Config{URL: "http://x"}); err != nil || c.cfg.Timeout != 5*time.Second {
		t.Errorf("the default: %v, %v", c, err)
	}
}

// What a query's author reads holds no body, no address and no error of the
// storage: they are of an account that reads more than the author may.
func TestPublicErrors(t *testing.T) {
	f := func(code int, body, reason, public string, isAnswered bool) {
		t.Helper()
		c := client(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			fmt.Fprint(w, body)
		})
		_, err := c.Query(t.Context(), "x")
		e, ok := errors.AsType[*Error](err)
		if !ok {
			t.Fatalf("%d %s: %v is no *Error", code, body, err)
		}
		if e.Reason() != reason || e.Public() != public || e.Answered() != isAnswered {
			t.Errorf("%d %s\n got %s %q, answered %v\nwant %s %q, answered %v", code, body, e.Reason(), e.Public(), e.Answered(), reason, public, isAnswered)
		}
	}
	apiError := func(kind, text string) string {
		return fmt.Sprintf(`{"status": "error", "errorType": %q, "error": %q}`, kind, text)
	}
	const (
		none   = "the PromQL backend cannot evaluate the query; the controller's log has the details"
		notOne = "the answer is not that of a PromQL backend"
	)
	f(400, apiError("bad_data", "1:5: parse error: unexpected end of input"), "bad_query",
		"the PromQL backend refuses the query: 1:5: parse error: unexpected end of input", false)
	f(422, apiError("execution", `found duplicate series for the match group {a="SECRET"} on the right hand-side of the operation: [{b="SECRET"}];many-to-many matching not allowed: matching labels must be unique on one side`),
		"bad_query", "the PromQL backend cannot evaluate the query: many-to-many matching not allowed: matching labels must be unique on one side", false)
	f(422, apiError("execution", `expanding series: dial tcp SECRET:10901: {namespace="SECRET"}`), "backend_error", none, false)
	f(422, apiError("internal", "SECRET"), "backend_error", none, false)
	f(422, apiError("422", "SECRET"), "backend_error", none, false)
	f(422, apiError("client_error", "SECRET"), "backend_error", none, false)
	f(422, apiError("server_error", "client error: SECRET"), "backend_error", none, false)
	f(422, apiError("", "SECRET"), "backend_error", none, false)
	f(400, apiError("timeout", "SECRET"), "timeout", "the PromQL backend aborted the query, because it takes too long", false)
	f(503, apiError("timeout", "SECRET"), "timeout", "the PromQL backend aborted the query, because it takes too long", false)
	f(401, "SECRET", "backend_error", "the PromQL backend answers with a client error: 401", false)
	f(503, apiError("unavailable", "SECRET"), "backend_error", "the PromQL backend answers with a server error: 503", false)
	f(200, "<html>SECRET", "bad_answer", notOne, false)
	f(200, `{"status": "success", "data": {"resultType": "vector", "result": [{"metric": "SECRET"}]}}`, "bad_answer", notOne, false)
	f(200, `{"status": "success", "data": {"resultType": "SECRET", "result": []}}`, "bad_answer", notOne, false)
	f(200, strings.Repeat(" ", 1<<20+2), "bad_answer", "the answer is longer than 1048576 bytes", false)
	f(200, data("vector", `[]`), "no_series", "the query returns nothing: no series matches", true)
	f(200, data("scalar", `[1800000000, "NaN"]`), "no_number", "the query returns NaN", true)
	f(200, data("vector", `[{"metric": {}, "value": [1799999000, "1"]}]`), "stale", "the value is older than 2m0s", true)

	// The addresses of the backend and of the token's issuer stay with the operator.
	c, err := New(Config{URL: "http://127.0.0.1:1/"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Query(t.Context(), "x")
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Reason() != "unreachable" || strings.Contains(e.Public(), "127.0.0.1") || !strings.Contains(e.Error(), "127.0.0.1") {
		t.Errorf("%v: %+v", err, e)
	}
}

// A body of the token's issuer is no more public than one of the backend.
func TestTokenErrorIsNotPublic(t *testing.T) {
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error": "SECRET"}`)
	}))
	defer issuer.Close()
	file := filepath.Join(t.TempDir(), "http.yaml")
	if err := os.WriteFile(file, []byte(fmt.Sprintf("oauth2: {client_id: a, client_secret: b, token_url: %q}\n", issuer.URL)), 0o600); err != nil {
		t.Fatal(err)
	}
	c := client(t, Config{HTTPConfig: file}, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, data("scalar", `[1, "1"]`)) })
	_, err := c.Query(t.Context(), "x")
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Reason() != "unreachable" || strings.Contains(e.Public(), "SECRET") || strings.Contains(e.Public(), "127.0.0.1") {
		t.Errorf("%v: %+v", err, e)
	}
}

// The request is Prometheus's, with what the HTTP configuration adds.
func TestRequest(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("token", "secret\n")
	cfg := Config{UserAgent: "gpupilot/1", MaxAge: 2 * time.Minute, HTTPConfig: write("http.yaml", `
authorization: {credentials_file: token}
http_headers: {X-Scope-OrgID: {values: [team-a]}}
`)}
	var got []string
	c := client(t, cfg, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			t.Error(err)
		}
		got = []string{
			r.Method, r.URL.Path, r.Form.Get("query"), r.Form.Get("time"), r.Form.Get("lookback_delta"), r.Form.Get("timeout"),
			r.Header.Get("Authorization"), r.Header.Get("X-Scope-OrgID"), r.UserAgent(),
		}
		fmt.Fprint(w, data("scalar", `[1800000000, "1"]`))
	})
	ask := func(authorization string) {
		t.Helper()
		if _, err := c.Query(t.Context(), `sum(x{a="b"})`); err != nil {
			t.Fatal(err)
		}
		want := []string{"POST", "/prom/api/v1/query", `sum(x{a="b"})`, "1800000000", "2m0s", "1m0s", authorization, "team-a", "gpupilot/1"}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("asked %q\n want %q", got, want)
		}
	}
	ask("Bearer secret")
	write("token", "changed")
	ask("Bearer changed")

	for text, says := range map[string]string{
		"nonsense: 1": "nonsense",
		"basic_auth: {username: a}\nbearer_token: b": "at most one of",
		"tls_config: {ca_file: none.pem}":            "none.pem",
	} {
		_, err := New(Config{URL: "http://x", HTTPConfig: write("bad.yaml", text)})
		if err == nil || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "bad.yaml") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := New(Config{URL: "http://x", HTTPConfig: filepath.Join(dir, "none")}); err == nil {
		t.Error("a file that is not there was accepted")
	}
}

// A backend that takes no POST is asked with GET.
func TestGet(t *testing.T) {
	c := client(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		fmt.Fprint(w, data("scalar", `[1800000000, "7"]`))
	})
	if s, err := c.Query(t.Context(), "x"); err != nil || s.Value != 7 {
		t.Errorf("%v, %v", s, err)
	}
}

// Whatever a backend answers, there is a finite number or an error.
func FuzzAnswer(f *testing.F) {
	for _, seed := range []string{
		data("scalar", `[1800000000, "2.5"]`), data("vector", `[]`), data("vector", `[{"value": [1e99, "1"]}]`),
		data("string", `[1, "x"]`), `{"status": "success"}`, `{"status":"success","data":{"resultType":"vector","result":null}}`, "", "{",
	} {
		f.Add(seed)
	}
	answer := ""
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
	defer srv.Close()
	c, err := New(Config{URL: srv.URL, Timeout: time.Minute})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		answer = text
		s, err := c.Query(t.Context(), "x")
		if err == nil && (s.Value != s.Value || s.Value-s.Value != 0) {
			t.Errorf("%q gave %v", text, s.Value)
		}
	})
}
