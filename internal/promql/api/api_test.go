// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/api"
	v1 "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/gpupilot/gpupilot/internal/base/fair"
	"github.com/gpupilot/gpupilot/internal/promql/engine"
	"github.com/gpupilot/gpupilot/internal/promql/rules"
)

// base is the time of the tests' samples.
var base = time.Unix(1_800_000_000, 0)

// newServer serves an API over a few series. The token is the viewer's namespace;
// "all" sees everything.
func newServer(t testing.TB) *httptest.Server {
	t.Helper()
	store := rules.NewStore(time.Hour, 1<<30)
	for i, metric := range []string{
		`gpu{namespace="team-a",pod="a-0"}`, `gpu{namespace="team-a",pod="a-1"}`, `gpu{namespace="team-b",pod="b-0"}`, `node{node="n"}`,
		`odd{namespace="team-a",text="a\"b\\<é"}`,
	} {
		l, err := parser.NewParser(parser.Options{}).ParseMetric(metric)
		if err != nil {
			t.Fatal(err)
		}
		for s := range 10 {
			err := store.Append(base.Add(time.Duration(s-9)*time.Second), []rules.Sample{{Labels: l, Value: float64(i*10 + s)}})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	mux := http.NewServeMux()
	New(Deps{
		Engine: engine.New(engine.Config{}, store), Version: "test", Now: func() time.Time { return base },
		Guard: func(next func(http.ResponseWriter, *http.Request, Viewer)) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				switch token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); token {
				case "", "all":
					next(w, r, Viewer{})
				case "nothing":
					next(w, r, Viewer{Namespaces: []string{}})
				default:
					next(w, r, Viewer{Namespaces: []string{token}, Unknown: strings.Count(token, "?")})
				}
			}
		},
		Metadata: func(v Viewer, family string) []Metadata {
			all := map[string][]Metadata{
				"gpu": {{"gauge", "Utilisation.", "percent"}, {"gauge", "Of team-b.", ""}}, "node": {{Type: "gauge"}},
				"absent": {{Type: "gauge"}},
			}
			if v.Namespaces != nil {
				return all[family][:min(len(all[family]), 1)]
			}
			return all[family]
		},
		Rules: func(Viewer) []RuleGroup {
			return []RuleGroup{{Name: "g", File: "f", Interval: 1, Rules: []Rule{{Name: "r", Query: "gpu", Health: "ok", Type: "recording"}}}}
		},
	}).Register(mux)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

// get returns the status and the body of a request.
func get(t testing.TB, srv *httptest.Server, token, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return do(t, srv, req)
}

func do(t testing.TB, srv *httptest.Server, req *http.Request) (int, string) {
	t.Helper()
	resp, err := srv.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("Content-Type"); got != "application/json" {
		t.Errorf("%s: the content type is %q", req.URL, got)
	}
	return resp.StatusCode, string(body)
}

// The answers are Prometheus's, byte by byte.
func TestAnswers(t *testing.T) {
	srv := newServer(t)
	f := func(path string, status int, want string) {
		t.Helper()
		code, body := get(t, srv, "", "/api/v1/"+path)
		if code != status || body != want {
			t.Errorf("%s\n got %d %s\nwant %d %s", path, code, body, status, want)
		}
		if !json.Valid([]byte(body)) {
			t.Errorf("%s: no JSON", path)
		}
	}
	q := url.QueryEscape
	ok := func(data string) string { return `{"status":"success","data":` + data + `}` }
	f("query?query="+q("sum(gpu)"), 200, ok(`{"resultType":"vector","result":[{"metric":{},"value":[1800000000,"57"]}]}`))
	f("query?query="+q("1/0")+"&time=1800000000.5", 200, ok(`{"resultType":"scalar","result":[1800000000.500,"+Inf"]}`))
	f("query?query=-1/0", 200, ok(`{"resultType":"scalar","result":[1800000000,"-Inf"]}`))
	f("query?query=0/0&time=2027-01-15T08:00:00.042Z", 200, ok(`{"resultType":"scalar","result":[1800000000.042,"NaN"]}`))
	f("query?query=1e-7", 200, ok(`{"resultType":"scalar","result":[1800000000,"1e-07"]}`))
	f("query?query="+q(`"x<y"`), 200, ok(`{"resultType":"string","result":[1800000000,"x\u003cy"]}`))
	f("query?query=odd", 200, ok(`{"resultType":"vector","result":[{"metric":{"__name__":"odd","namespace":"team-a","text":"a\"b\\\u003cé"},"value":[1800000000,"49"]}]}`))
	f("query?query="+q(`node[2s]`), 200, ok(`{"resultType":"matrix","result":[{"metric":{"__name__":"node","node":"n"},"values":[[1799999999,"38"],[1800000000,"39"]]}]}`))
	f("query_range?query=node&start=1799999998&end=1800000000&step=1", 200, ok(`{"resultType":"matrix","result":[{"metric":{"__name__":"node","node":"n"},"values":[[1799999998,"37"],[1799999999,"38"],[1800000000,"39"]]}]}`))
	f("query?query=nothing", 200, ok(`{"resultType":"vector","result":[]}`))
	f("query_range?query=nothing&start=1&end=2&step=1s", 200, ok(`{"resultType":"matrix","result":[]}`))
	f("series?match[]=node", 200, ok(`[{"__name__":"node","node":"n"}]`))
	f("series?match[]=nothing", 200, ok(`[]`))
	f("labels", 200, ok(`["__name__","namespace","node","pod","text"]`))
	f("labels?match[]=node", 200, ok(`["__name__","node"]`))
	f("label/pod/values", 200, ok(`["a-0","a-1","b-0"]`))
	f("label/none/values", 200, ok(`[]`))
	f("metadata?metric=gpu&limit_per_metric=1", 200, ok(`{"gpu":[{"type":"gauge","help":"Utilisation.","unit":"percent"}]}`))
	f("metadata", 200, ok(`{"gpu":[{"type":"gauge","help":"Utilisation.","unit":"percent"},{"type":"gauge","help":"Of team-b.","unit":""}],"node":[{"type":"gauge","help":"","unit":""}]}`))
	f("metadata?limit=1&limit_per_metric=1", 200, ok(`{"gpu":[{"type":"gauge","help":"Utilisation.","unit":"percent"}]}`))
	f("metadata?metric=absent", 200, ok(`{}`))
	f("alerts", 200, ok(`{"alerts":[]}`))
	f("query_exemplars?query=gpu", 200, ok(`[]`))
	f("format_query?query="+q("sum  by(a)(x)"), 200, ok(`"sum by (a) (x)"`))
	f("rules", 200, ok(`{"groups":[{"name":"g","file":"f","interval":1,"limit":0,"rules":[{"name":"r","query":"gpu","health":"ok","evaluationTime":0,"lastEvaluation":"0001-01-01T00:00:00Z","type":"recording"}],"evaluationTime":0,"lastEvaluation":"0001-01-01T00:00:00Z"}]}`))
	f("rules?type=alert", 200, ok(`{"groups":[]}`))
	f("query?query=gpu&limit=1", 200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"__name__":"gpu","namespace":"team-a","pod":"a-0"},"value":[1800000000,"9"]}]},"warnings":["results truncated due to limit"]}`)
	f("label/pod/values?limit=1", 200, `{"status":"success","data":["a-0"],"warnings":["results truncated due to limit"]}`)
	f("query?query=rate(gpu{pod=\"a-0\"}[5s])", 200, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"namespace":"team-a","pod":"a-0"},"value":[1800000000,"1"]}]},"infos":["PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: \"gpu\" (1:6)"]}`)
	bad := func(kind, text string) string {
		return `{"status":"error","errorType":"` + kind + `","error":` + string(appendString(nil, text)) + `}`
	}
	f("query?query=sum(", 400, bad("bad_data", `invalid parameter "query": 1:5: parse error: unclosed left parenthesis`))
	f("query", 400, bad("bad_data", `invalid parameter "query": unknown position: parse error: no expression found in input`))
	f("query?query=1&time=x", 400, bad("bad_data", `invalid parameter "time": cannot parse "x" to a valid timestamp`))
	f("query?query=1&timeout=x", 400, bad("bad_data", `invalid parameter "timeout": cannot parse "x" to a valid duration`))
	f("query?query=1&limit=-1", 400, bad("bad_data", `invalid parameter "limit": "-1" is not a number that is zero or positive`))
	f("query_range?query=1&start=1&end=2", 400, bad("bad_data", `invalid parameter "step": cannot parse "" to a valid value`))
	f("query_range?query=1&start=1&end=0&step=1", 400, bad("bad_data", "end timestamp must not be before start time"))
	f("query_range?query=1&start=1&end=1800000000&step=1", 400, bad("bad_data", "the range has 1800000000 steps; at most 11000 are allowed: use a longer step"))
	if code, body := get(t, srv, "", "/api/v1/query?query="+q("gpu + on() gpu")); code != 422 || !strings.Contains(body, `"errorType":"execution","error":"found duplicate series`) {
		t.Errorf("an error of the evaluation: %d %s", code, body)
	}
	f("series", 400, bad("bad_data", "no match[] parameter provided"))
	f("series?match[]={", 400, bad("bad_data", `invalid parameter "query": 1:2: parse error: unexpected end of input inside braces`))
	f("label/%FF/values", 400, bad("bad_data", `invalid label name: "\xff"`))
}

// A viewer sees the series of the viewer's namespaces, whatever is asked.
func TestViewers(t *testing.T) {
	srv := newServer(t)
	f := func(token, path, want string) {
		t.Helper()
		code, body := get(t, srv, token, "/api/v1/"+path)
		if code != 200 || !strings.Contains(body, want) || token == "team-a" && strings.Contains(body, "team-b") {
			t.Errorf("%s as %s: %d %s, want %s", path, token, code, body, want)
		}
	}
	f("all", "query?query=count({__name__=~\".%2B\"})", `"5"`)
	f("team-a", "query?query=count({__name__=~\".%2B\"})", `"3"`)
	f("team-b", "query?query=count({__name__=~\".%2B\"})", `"1"`)
	f("team-a", "query?query=gpu{namespace=\"team-b\"}", `"result":[]`)
	f("team-a", "query?query=gpu{namespace=~\"team-b|team-a\"}", `a-0`)
	f("team-a", "series?match[]={__name__=~\".%2B\"}", `a-0`)
	f("team-a", "label/namespace/values", `["team-a"]`)
	f("team-a", "label/pod/values?match[]=gpu{namespace=\"team-b\"}", `[]`)
	f("team-a", "labels", `["__name__","namespace","pod","text"]`)
	f("team-a?", "query?query=1", `"warnings":["the rights of 1 namespaces`)
	f("nothing", "query?query=gpu", `"result":[]},"warnings":["the token's owner may see the series of no namespace`)
}

// POST with a form is what Grafana sends.
func TestPost(t *testing.T) {
	srv := newServer(t)
	f := func(path string, form url.Values, want string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+path, strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if code, body := do(t, srv, req); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s %v: %d %s", path, form, code, body)
		}
	}
	f("/api/v1/query", url.Values{"query": {"1+1"}, "time": {"4"}}, `[4,"2"]`) // the health check of Grafana's data source
	f("/api/v1/query_range", url.Values{"query": {"sum(gpu)"}, "start": {"1799999990"}, "end": {"1800000000.123"}, "step": {"5"}, "stats": {"all"}}, `"matrix"`)
	f("/api/v1/labels", url.Values{"match[]": {"gpu"}, "start": {"1799999990"}, "end": {"1800000000"}}, `["__name__","namespace","pod"]`)
	f("/api/v1/series", url.Values{"match[]": {"gpu", "node"}}, `{"__name__":"node","node":"n"}`)
	f("/api/v1/query", url.Values{"query": {"sum(gpu)"}, "timeout": {"5s"}, "lookback_delta": {"1m"}}, `"57"`)
	big := url.Values{"query": {strings.Repeat("1", 100_000)}}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/api/v1/query", strings.NewReader(big.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if code, _ := do(t, srv, req); code != 400 {
		t.Errorf("a form of 100 kB: %d", code)
	}
}

// Prometheus's own Go client understands the API.
func TestClient(t *testing.T) {
	srv := newServer(t)
	c, err := api.NewClient(api.Config{Address: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	x, ctx := v1.NewAPI(c), t.Context()
	check := func(what string, v any, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		t.Logf("%s: %v", what, v)
	}
	v, notes, _, err := x.Query(ctx, `sum by (namespace) (gpu)`, base)
	check("query", v, err)
	if len(notes) > 0 || !strings.Contains(v.String(), `{namespace="team-b"} => 29`) {
		t.Errorf("query: %v, %v", v, notes)
	}
	v, _, _, err = x.QueryRange(ctx, `gpu`, v1.Range{Start: base.Add(-5 * time.Second), End: base, Step: time.Second})
	check("range", v.Type(), err)
	sets, _, _, err := x.Series(ctx, []string{"gpu"}, base.Add(-time.Hour), base)
	check("series", sets, err)
	names, _, _, err := x.LabelNames(ctx, nil, base.Add(-time.Hour), base)
	check("labels", names, err)
	values, _, _, err := x.LabelValues(ctx, "pod", nil, base.Add(-time.Hour), base)
	check("values", values, err)
	meta, err := x.Metadata(ctx, "", "")
	check("metadata", meta, err)
	r, err := x.Rules(ctx, nil)
	check("rules", r.Groups, err)
	a, err := x.Alerts(ctx)
	check("alerts", a, err)
	b, err := x.Buildinfo(ctx)
	check("buildinfo", b, err)
	if _, _, _, err := x.Query(ctx, "sum(", base); err == nil || !strings.Contains(err.Error(), "bad_data") {
		t.Errorf("an error: %v", err)
	}
}

// promtool, of Prometheus's release for Debian, understands the API.
func TestPromtool(t *testing.T) {
	promtool := findPromtool(t)
	srv := newServer(t)
	f := func(want string, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), promtool, append([]string{"query"}, args...)...).CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("promtool %v: %v\n%s\nwant %s", args, err, out, want)
		}
	}
	f(`{} => 57 @[1800000000]`, "instant", "--time=1800000000", srv.URL, "sum(gpu)")
	f("{} =>\n51 @[1799999998]\n54 @[1799999999]\n57 @[1800000000]", "range", "--start=1799999998", "--end=1800000000", "--step=1s", srv.URL, "sum(gpu)")
	f(`{__name__="gpu", namespace="team-a", pod="a-0"}`+"\n"+`{__name__="gpu", namespace="team-a", pod="a-1"}`+"\n"+`{__name__="gpu", namespace="team-b", pod="b-0"}`, "series", "--match=gpu", "--start=1799999998", "--end=1800000000", srv.URL)
	f("a-0\na-1\nb-0", "labels", "--start=1799999998", "--end=1800000000", srv.URL, "pod")
}

func findPromtool(t *testing.T) string {
	home, _ := os.UserHomeDir()
	for _, p := range []string{"promtool", filepath.Join(home, ".cache/gpupilot/prometheus/usr/bin/promtool")} {
		if found, err := exec.LookPath(p); err == nil {
			return found
		}
	}
	t.Skip("promtool is not installed")
	return ""
}

// Slow readers of large answers do not fill the memory.
func TestLargeAnswers(t *testing.T) {
	big := make(promql.Matrix, 1)
	big[0].Floats = make([]promql.FPoint, maxAnswer/pointBytes*2)
	for i := range big[0].Floats {
		big[0].Floats[i] = promql.FPoint{T: int64(i), F: math.Pi}
	}
	if _, err := appendAnswer(nil, "", big, nil); err == nil || classify(err).kind != "execution" {
		t.Errorf("an answer of more than the limit: %v", err)
	}
	a := New(Deps{})
	for a.answers.take(fair.Namespace("noisy"), maxAnswer/2) { // ten of its service accounts read slowly
	}
	for payer, want := range map[string]int{"noisy": http.StatusServiceUnavailable, "quiet": http.StatusOK} {
		data := any(big)
		if payer == "quiet" {
			data = []string{"x"}
		}
		w := httptest.NewRecorder()
		a.send(w, Viewer{Payer: fair.Namespace(payer), Namespaces: []string{"noisy", "quiet"}}, "", data, nil)
		if w.Code != want || want != http.StatusOK && w.Header().Get("Retry-After") == "" {
			t.Errorf("%s: %d, want %d: %.100s", payer, w.Code, want, w.Body)
		}
	}
}

// However tenants share the memory of answers, there is room for the small answer of one
// that has none.
func TestRandomAnswers(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		a := answers{by: map[fair.Payer]int64{}}
		type held struct {
			payer fair.Payer
			size  int64
		}
		var all []held
		for range 2000 {
			if x := (held{fair.Namespace(fmt.Sprint("tenant", r.IntN(8))), 1 + r.Int64N(maxAnswer)}); r.IntN(3) > 0 && a.take(x.payer, x.size) {
				all = append(all, x)
			} else if len(all) > 0 {
				i := r.IntN(len(all))
				a.put(all[i].payer, all[i].size)
				all = append(all[:i], all[i+1:]...)
			}
			if !a.take(fair.Namespace("quiet"), 100<<10) {
				t.Fatalf("seed %d: no room beside %v", seed, a.by)
			}
			a.put(fair.Namespace("quiet"), 100<<10)
			if a.total > maxAnswers {
				t.Fatalf("seed %d: %d bytes", seed, a.total)
			}
		}
		for _, x := range all {
			a.put(x.payer, x.size)
		}
		if a.total != 0 || len(a.by) > 0 {
			t.Fatalf("seed %d: %d bytes remain of %v", seed, a.total, a.by)
		}
	}
}

// The encoder writes what encoding/json reads.
func FuzzEncode(f *testing.F) {
	f.Add("name", "value\x00\xff<>&\"\\é\u2028", int64(-1), 1.5)
	f.Fuzz(func(t *testing.T, name, value string, at int64, x float64) {
		in := promql.Vector{{Metric: labels.FromStrings("l"+name, value), T: at % (1 << 50), F: x}}
		b, err := appendAnswer(nil, "", in, nil)
		if err != nil {
			t.Fatal(err)
		}
		var out struct {
			Data struct {
				Result []struct {
					Metric map[string]string
					Value  [2]any
				}
			}
		}
		if err := json.NewDecoder(bytes.NewReader(b)).Decode(&out); err != nil || len(out.Data.Result) != 1 {
			t.Fatalf("%v: %s", err, b)
		}
		want := strings.ToValidUTF8(value, "\ufffd")
		if value != "" && len(out.Data.Result[0].Metric) == 1 && strings.Count(want, "\ufffd") == 0 {
			for _, got := range out.Data.Result[0].Metric {
				if d := cmp.Diff(want, got); d != "" {
					t.Error(d)
				}
			}
		}
		if s, ok := out.Data.Result[0].Value[1].(string); !ok || s != string(bytes.Trim(appendFloat(nil, x), `"`)) {
			t.Errorf("the value is %v", fmt.Sprint(out.Data.Result[0].Value))
		}
	})
}
