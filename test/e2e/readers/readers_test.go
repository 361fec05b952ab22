// SPDX-License-Identifier: Apache-2.0

//go:build e2e && linux

// Package readers tests what clients of the controller's listeners can hold: every route of every listener × readers that
// are slow or many, of every kind of account. Which routes there are is read from the code, and from the APIs themselves.
//
// make test-all runs a sample, make sweep all pairs.
package readers

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/test/agentrig"
	"github.com/gpupilot/gpupilot/test/readers"
	"github.com/gpupilot/gpupilot/test/stack"
)

var (
	pairs  = flag.Int("pairs", 6, "how many pairs of a route and an attack to run; 0: all")
	seed   = flag.Uint64("seed", 1, "of the choice of pairs")
	reacts = flag.Int("reactions", 1, "how many times the honest workload is scaled beside an attack; the median is reported")
	only   = flag.String("only", "", "a regular expression of the pairs")
)

const (
	honest, evil = stack.WorkloadNamespace, "evil" // namespaces
	accounts     = 43                              // of the evil namespace
	rounds       = 12                              // of the honest requests beside an attack
	// An attack may raise the controller's memory by a quarter, and by what the answers of one namespace may have in memory
	// (SECURITY.md), with as much garbage.
	ratio, constant = 1.25, 2 * 16 << 20
	patience        = time.Minute
)

// listener is one of the controller's, with its routes and with what others ask of it meanwhile.
type listener struct {
	name, address string
	routes        []string
	// attacks are made for a route.
	attacks func(route string) []readers.Attack
	honest  map[string]func() error
}

// parameters make the answers of routes large.
var parameters = map[string]string{
	"GET /api/v1/minutes":      "namespace=evil&name=w&since=336h&step=1m",
	"GET /api/v1/history":      "namespace=evil&name=w",
	"GET /api/v1/workload":     "namespace=evil&name=w",
	"GET /api/v1/nodes":        "limit=200",
	"GET /api/v1/gpus":         "limit=1000",
	"GET /api/v1/workloads":    "limit=50",
	"GET /api/v1/decisions":    "limit=200",
	"GET /api/v1/query":        "query=" + url.QueryEscape(`{__name__=~"gpupilot_.+"}[14d]`),
	"GET /api/v1/query_range":  "query=" + url.QueryEscape(`{__name__=~"gpupilot_.+"}`) + "&start=%d&end=%d&step=60",
	"GET /api/v1/series":       "match[]=" + url.QueryEscape(`{__name__=~".+"}`),
	"GET /api/v1/format_query": "query=" + strings.Repeat("1%2B", 2000) + "1",
}

// wildcards of patterns, with a value of each.
var wildcards = strings.NewReplacer("{$}", "", "{name}", "__name__", "{file...}", "bundle.js")

// request returns the text of a request for a route, with the next of the tokens.
func request(route string, next func() string) string {
	method, path, _ := strings.Cut(route, " ")
	p := parameters["GET "+path]
	if strings.Contains(p, "%d") {
		p = fmt.Sprintf(p, time.Now().Add(-14*24*time.Hour).Unix(), time.Now().Unix())
	}
	path = wildcards.Replace(path)
	body := ""
	if method == http.MethodPost {
		body, p = p, ""
	}
	if p != "" {
		path += "?" + p
	}
	token := next()
	if token != "" {
		token = "Authorization: Bearer " + token + "\r\n"
	}
	return fmt.Sprintf("%s %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n%s\r\n%s", method, path, len(body), token, body)
}

// attacks are the attacks on a route of HTTP/1.1, by each kind of client.
func (r *rig) attacks(route string, secure bool) (out []readers.Attack) {
	var n atomic.Uint64
	for who, tokens := range map[string][]string{"anonymous": {""}, "an account": r.tokens[:1], "accounts": r.tokens} {
		add := func(what string, sources, connections int, does func(request string) readers.Client) {
			out = append(out, readers.Attack{Name: what + ", " + who, Sources: sources, Connections: connections, Does: func(ctx context.Context, c net.Conn) {
				if secure {
					t := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
					if t.HandshakeContext(ctx) != nil {
						return
					}
					c = t
				}
				does(request(route, func() string { return tokens[n.Add(1)%uint64(len(tokens))] }))(ctx, c)
			}})
		}
		then := func(f readers.Client) func(string) readers.Client {
			return func(request string) readers.Client { return readers.Asks(request, f) }
		}
		add("slow readers of one source", 1, 450, then(readers.Never))
		add("readers of a byte a second", 200, 400, then(readers.Trickle))
		add("half-closed readers", 1, 200, then(readers.HalfClose))
		add("requests that are not read", 50, 200, readers.Repeats)
		add("many readers", 1, 32, func(request string) readers.Client { return reads(request) })
	}
	slices.SortFunc(out, func(a, b readers.Attack) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// reads asks again and again, and reads what it gets.
func reads(request string) readers.Client {
	return func(ctx context.Context, c net.Conn) {
		go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
		readers.Each(ctx, 50*time.Millisecond, func() bool {
			_, err := io.WriteString(c, request)
			return err == nil
		})
	}
}

// Clients that hold what they get, at any route of any listener, and objects that cost much keep no other client out, delay
// no decision, and cost little memory.
func TestReadersKeepNobodyOut(t *testing.T) {
	r := newRig(t)
	type pair struct {
		*listener
		name string
		run  func(ctx context.Context)
	}
	var all []pair
	match := regexp.MustCompile(*only)
	add := func(l *listener, name string, run func(context.Context)) {
		if match.MatchString(name) {
			all = append(all, pair{l, name, run})
		}
	}
	listeners := r.listeners(t)
	for _, l := range listeners {
		r.beside(t, l) // what starts once, starts
		for _, route := range l.routes {
			for _, x := range l.attacks(route) {
				add(l, l.name+": "+route+": "+x.Name, func(ctx context.Context) { x.Run(ctx, r.link, l.address) })
			}
		}
		t.Logf("%s: %d routes: %v", l.name, len(l.routes), l.routes)
	}
	objects := r.objectAttacks(t, listeners[0])
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		add(listeners[0], "objects: "+name, objects[name])
	}
	rand.New(rand.NewPCG(*seed, 0)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if *pairs > 0 {
		all = all[:min(*pairs, len(all))]
	}
	for _, x := range all {
		t.Run(x.name, func(t *testing.T) {
			alone := r.beside(t, x.listener)
			ctx, end := context.WithCancel(t.Context())
			var attacked sync.WaitGroup
			attacked.Go(func() { x.run(ctx) })
			defer func() { end(); attacked.Wait() }()
			beside := r.beside(t, x.listener)
			end()
			attacked.Wait()
			judge(t, alone, beside)
			r.clear(t)
			stack.Eventually(t, func() error { // the attack leaves nothing
				if m := r.meters(t); m["go_goroutines"] > r.goroutines+100 || m["gpupilot_page_connections"] > 50 {
					return fmt.Errorf("%.0f goroutines (%.0f at the start), %.0f connections of the page", m["go_goroutines"], r.goroutines, m["gpupilot_page_connections"])
				}
				return nil
			})
		})
	}
}

// judge logs both, and fails if others were refused or the controller's memory grew. It judges no time.
func judge(t *testing.T, alone, beside measured) {
	t.Helper()
	t.Logf("alone and beside: %s; %s", alone, beside)
	if most := uint64(ratio*float64(alone.rss)) + constant; beside.rss > most {
		t.Errorf("RSS %.1f MiB alone, %.1f beside, want at most %.1f", mib(alone.rss), mib(beside.rss), mib(most))
	}
	for what, err := range beside.failed {
		t.Errorf("%s: %v", what, err)
	}
}

// measured is what honest clients met.
type measured struct {
	rss      uint64 // at most
	latency  map[string]time.Duration
	reaction time.Duration
	failed   map[string]error
}

func (m measured) String() string {
	out := fmt.Sprintf("RSS %.1f MiB, scaled in %v", mib(m.rss), m.reaction.Round(time.Millisecond))
	for _, what := range slices.Sorted(maps.Keys(m.latency)) {
		out += fmt.Sprintf(", %s %v", what, m.latency[what].Round(100*time.Microsecond))
	}
	return out
}

func mib(n uint64) float64 { return float64(n) / (1 << 20) }

// beside asks a listener as others do, and has a workload scaled.
func (r *rig) beside(t *testing.T, l *listener) measured {
	t.Helper()
	m := measured{latency: map[string]time.Duration{}, failed: map[string]error{}}
	took := map[string][]time.Duration{}
	for range rounds {
		time.Sleep(100 * time.Millisecond) // the load of an attack is its own
		for what, ask := range l.honest {
			began := time.Now()
			if err := ask(); err != nil {
				m.failed[what] = errors.Join(m.failed[what], err)
			}
			took[what] = append(took[what], time.Since(began))
		}
		rss, err := agentrig.RSS(r.ControllerPID())
		stack.Must(t, err)
		m.rss = max(m.rss, rss)
	}
	for what, d := range took {
		slices.Sort(d)
		m.latency[what] = d[len(d)/2]
	}
	var reactions []time.Duration
	for range *reacts {
		r.WantReplicas(t, workload, "1", func(n int32) bool { return n == 1 })
		began := time.Now()
		r.Offer(workload, 0.9)
		r.WantReplicas(t, workload, "2", func(n int32) bool { return n == 2 })
		reactions = append(reactions, time.Since(began))
		r.Offer(workload, 0.3)
	}
	slices.Sort(reactions)
	m.reaction = reactions[len(reactions)/2]
	return m
}

// answers returns a request of an honest client, which has to be answered with 200 and be read to its end.
func answers(c *http.Client, url, token string) func() error {
	return func() error {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := c.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err == nil && res.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %.200s", res.Status, body)
		}
		return err
	}
}
