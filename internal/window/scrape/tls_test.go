// SPDX-License-Identifier: Apache-2.0

package scrape

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpupilot/gpupilot/internal/window/page"
	"github.com/gpupilot/gpupilot/internal/window/series"
)

// podRunner is a runner of a pod that is read at this address.
func podRunner(address, scheme string, verify TLS, dial Dialer) *runner {
	s := New(Config{Timeout: time.Minute}, Deps{Client: NewClient(), Dial: dial, Store: series.New(series.Config{}), Log: slog.New(slog.DiscardHandler)})
	want := Target{
		Name: "pod", URL: parse(scheme + "://" + address + "/metrics"), Kind: Pod, TLS: verify,
		Labels: series.TargetLabels{Namespace: "ns", Pod: "web-1"}, Metrics: []page.Metric{{Key: "queue", Name: "queue"}},
	}
	r := &runner{s: s, phase: newPhase(&s.cfg, want.Name), state: State{Name: want.Name, URL: want.URL.String()}}
	r.want.Store(&want)
	return r
}

// tlsServer serves TLS with httptest's certificate, and returns its address and authority.
func tlsServer(t *testing.T, h http.HandlerFunc, change func(*tls.Config)) (address, ca string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.TLS = &tls.Config{}
	if change != nil {
		change(srv.TLS)
	}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String(), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
}

func servePage(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "queue 7\n") }

// A pod with TLS is read over one connection. Its certificate is verified by the authority and
// the name of the signal, or not at all.
func TestPodsWithTLS(t *testing.T) {
	var connections, requests atomic.Int64
	address, ca := tlsServer(t, func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if r.Header.Get("Authorization") != "" || len(r.TLS.PeerCertificates) > 0 {
			t.Error("a credential was sent")
		}
		servePage(w, r)
	}, func(c *tls.Config) {
		c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { connections.Add(1); return nil, nil }
	})
	dialer := (&net.Dialer{}).DialContext
	f := func(verify TLS, want string) {
		t.Helper()
		for _, dial := range []Dialer{dialer, nil} {
			r := podRunner(address, "https", verify, dial)
			r.scrape(context.Background())
			switch v, ok := r.s.deps.Store.PodMetric("ns", "web-1", "queue", time.Now(), time.Minute); {
			case want == "" && (!ok || v.Value != 7 || r.state.Err != nil):
				t.Errorf("%+v: %v, %v", verify, v, r.state.Err)
			case want != "" && (ok || r.state.Err == nil || !strings.Contains(r.state.Err.Error(), want)):
				t.Errorf("%+v: %v, %v, want %q", verify, v, r.state.Err, want)
			}
			r.conn.shut()
		}
	}
	f(TLS{InsecureSkipVerify: true}, "")
	f(TLS{CA: ca, ServerName: "example.com"}, "")
	f(TLS{CA: ca, ServerName: "chat.llm.svc"}, "the TLS certificate does not have the name in tls.serverName")
	f(TLS{ServerName: "example.com"}, "the TLS certificate is not signed by an authority of tls.ca") // no authority: nobody is trusted, and not the system's

	connections.Store(0)
	requests.Store(0)
	r := podRunner(address, "https", TLS{CA: ca, ServerName: "example.com"}, dialer)
	defer r.conn.shut()
	for range 3 {
		if r.scrape(context.Background()); r.state.Err != nil {
			t.Fatal(r.state.Err)
		}
	}
	if connections.Load() != 1 || requests.Load() != 3 {
		t.Errorf("%d connections for %d requests", connections.Load(), requests.Load())
	}
}

// Where the scheme is not what the port speaks, the message says what to set. The server's own
// text is in no message.
func TestTheOtherProtocol(t *testing.T) {
	dial := (&net.Dialer{}).DialContext
	f := func(address, scheme string, kind Kind, want string) {
		t.Helper()
		r := podRunner(address, scheme, TLS{InsecureSkipVerify: true}, dial)
		defer r.conn.shut()
		target := *r.want.Load()
		if target.Kind = kind; kind != Pod || scheme == "http" {
			target.TLS = TLS{}
		}
		r.want.Store(&target)
		for range 2 { // the second time from memory
			r.scrape(context.Background())
			if r.state.Err == nil || !strings.HasSuffix(r.state.Err.Error(), ": "+want) {
				t.Errorf("%s: %v, want %q", scheme, r.state.Err, want)
			}
		}
	}
	address, _ := tlsServer(t, servePage, nil) // answers 400 to plain HTTP
	f(address, "http", Pod, "the port speaks TLS: set scheme: HTTPS")
	f(address, "http", DCGM, "the port speaks TLS: set --agent-scheme=https")
	f(resetting(t), "http", Pod, "the port speaks TLS: set scheme: HTTPS")

	address, _ = tlsServer(t, servePage, func(c *tls.Config) { c.ClientAuth = tls.RequireAnyClientCert })
	const mesh = "asks for a certificate of the client, as the proxies of meshes do, and none is sent: exclude the port from the mesh"
	f(address, "http", Pod, "the port speaks TLS and "+mesh)
	f(address, "https", Pod, "the port "+mesh)

	plain := httptest.NewServer(http.HandlerFunc(servePage))
	t.Cleanup(plain.Close)
	f(plain.Listener.Addr().String(), "https", Pod, "the port speaks plain HTTP: set scheme: HTTP, without tls")
	f(strings.TrimSuffix(strings.TrimPrefix(serveRaw(t, secret+"\r\n"), "http://"), "/metrics"), "https", Pod,
		"the port does not speak TLS: if it speaks plain HTTP, set scheme: HTTP, without tls")

	refuses := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusBadRequest) }))
	t.Cleanup(refuses.Close)
	f(refuses.Listener.Addr().String(), "http", Pod, "answered 400 Bad Request")
}

// resetting is the address of a server with TLS that closes the connection at anything else,
// without an answer.
func resetting(t *testing.T) string {
	t.Helper()
	srv := httptest.NewTLSServer(http.HandlerFunc(servePage))
	t.Cleanup(srv.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				first := make([]byte, 1)
				if _, err := io.ReadFull(c, first); err != nil || first[0] != 0x16 { // no TLS handshake
					return
				}
				_ = tls.Server(&replayed{c, first}, srv.TLS).Handshake()
			}()
		}
	}()
	return l.Addr().String()
}

// replayed is a connection whose first bytes were read.
type replayed struct {
	net.Conn
	first []byte
}

func (c *replayed) Read(b []byte) (int, error) {
	if len(c.first) > 0 {
		n := copy(b, c.first)
		c.first = c.first[n:]
		return n, nil
	}
	return c.Conn.Read(b)
}

// A pod with TLS cannot send the controller elsewhere, nor make it hold a handshake without end.
func TestHostilePodsWithTLS(t *testing.T) {
	dial := (&net.Dialer{}).DialContext
	var elsewhere atomic.Int64
	victim, _ := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { elsewhere.Add(1); servePage(w, r) }, nil)
	address, _ := tlsServer(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "https://"+victim, http.StatusFound) }, nil)
	r := podRunner(address, "https", TLS{InsecureSkipVerify: true}, dial)
	defer r.conn.shut()
	if r.scrape(context.Background()); r.state.Err == nil || !strings.HasSuffix(r.state.Err.Error(), "answered 302 Found") || elsewhere.Load() > 0 {
		t.Errorf("%v, %d requests elsewhere", r.state.Err, elsewhere.Load())
	}

	address, _ = tlsServer(t, servePage, func(c *tls.Config) {
		cert := httptestCertificate(t)
		for len(cert.Certificate) < 200 {
			cert.Certificate = append(cert.Certificate, cert.Certificate[0])
		}
		c.Certificates = []tls.Certificate{cert}
	})
	long := podRunner(address, "https", TLS{InsecureSkipVerify: true}, dial)
	defer long.conn.shut()
	if long.scrape(context.Background()); long.state.Err == nil || !strings.HasSuffix(long.state.Err.Error(), errHandshakeTooLong.Error()) {
		t.Errorf("a handshake of 200 certificates: %v", long.state.Err)
	}
}

func httptestCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	srv := httptest.NewTLSServer(http.HandlerFunc(servePage))
	defer srv.Close()
	return srv.TLS.Certificates[0]
}

// The pools of authorities are shared, and forgotten with their last target.
func TestPoolsOfAuthorities(t *testing.T) {
	s := New(Config{}, Deps{Store: series.New(series.Config{})})
	if first := s.rootsOf("a"); first != s.rootsOf("a") || len(s.roots) != 1 {
		t.Error("a pool is not shared")
	}
	s.wanted = []Target{{TLS: TLS{CA: "b"}}}
	s.rootsOf("b")
	if s.dropRoots(); len(s.roots) != 1 || s.roots["b"] == nil {
		t.Errorf("%d pools", len(s.roots))
	}
}
