// SPDX-License-Identifier: Apache-2.0

package webconfig

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/regularfile"
)

// pipes is a listener in memory: synctest knows no sockets.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// from is a server's side of a connection with the client's address.
type from struct {
	net.Conn
	ip string
}

func (c from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.ip), Port: 1} }

// client connects from an address, with a handshake for each request.
func (p *pipes) client(ip string, seen *atomic.Int64) *http.Client {
	return &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			select {
			case p.conns <- from{theirs, ip}:
				return ours, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
		TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, // the certificate is compared below
			VerifyConnection: func(s tls.ConnectionState) error {
				seen.Store(s.PeerCertificates[0].SerialNumber.Int64())
				return nil
			},
		},
	}}
}

// secret is a directory that changes as a mounted Secret does: its files are links into
// ..data, a link that is replaced.
type secret struct {
	dir     string
	version int64
}

func (s *secret) replace(t *testing.T, web string) {
	t.Helper()
	s.version++
	next := fmt.Sprintf("..v%d", s.version)
	if err := os.Mkdir(filepath.Join(s.dir, next), 0o700); err != nil {
		t.Fatal(err)
	}
	certificate(t, filepath.Join(s.dir, next), s.version)
	write(t, filepath.Join(s.dir, next, "web.yml"), web)
	for _, name := range []string{"web.yml", "tls.crt", "tls.key"} {
		// All versions have the same times.
		if err := os.Chtimes(filepath.Join(s.dir, next, name), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		if s.version == 1 {
			if err := os.Symlink(filepath.Join("..data", name), filepath.Join(s.dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tmp := filepath.Join(s.dir, "..tmp")
	if err := os.Symlink(next, tmp); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(s.dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

// The certificate and the password are replaced again and again, while scrapers read and
// others send wrong passwords: no scrape fails. For the password, the file has the new
// user and the old one until the scrapers have changed.
func TestRotationUnderLoad(t *testing.T) {
	const rotations = 4
	users := make([]string, rotations+2)
	for i := range users {
		users[i] = fmt.Sprintf("prom%d: %s", i, hash(t, fmt.Sprint("secret", i)))
	}
	web := func(i int) string { // the users i and i+1
		return "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\nbasic_auth_users:\n  " + users[i] + "\n  " + users[i+1] + "\n"
	}
	s := &secret{dir: t.TempDir()}
	s.replace(t, web(0))
	synctest.Test(t, func(t *testing.T) {
		f, err := Load(t.Context(), filepath.Join(s.dir, "web.yml"), regularfile.New(time.Minute), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
		server := &http.Server{Handler: f.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
		go func() { _ = server.Serve(tls.NewListener(l, f.TLS())) }()
		var (
			all     sync.WaitGroup
			current atomic.Int64 // the scrapers' user
			serial  atomic.Int64 // that they have seen
			scrapes atomic.Int64
		)
		ctx, cancel := context.WithCancel(t.Context())
		get := func(c *http.Client, user, password string) (int, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://agent/metrics", nil)
			if err != nil {
				return 0, err
			}
			req.SetBasicAuth(user, password)
			res, err := c.Do(req)
			if err != nil {
				return 0, err
			}
			return res.StatusCode, res.Body.Close()
		}
		for i := range 4 {
			c := l.client(fmt.Sprintf("10.0.0.%d", i), &serial)
			all.Go(func() {
				for ctx.Err() == nil {
					n := current.Load()
					if got, err := get(c, fmt.Sprint("prom", n), fmt.Sprint("secret", n)); got != http.StatusOK || err != nil {
						t.Errorf("a scrape as user %d: %d, %v", n, got, err)
					}
					scrapes.Add(1)
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		for i := range 4 {
			c := l.client("10.9.0.9", &atomic.Int64{})
			all.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					if got, err := get(c, fmt.Sprint("prom", current.Load()), fmt.Sprint("wrong", i, n)); got != http.StatusUnauthorized || err != nil {
						t.Errorf("a wrong password: %d, %v", got, err)
					}
					time.Sleep(250 * time.Millisecond)
				}
			})
		}
		for i := range rotations {
			time.Sleep(2 * checkEvery)
			current.Store(int64(i + 1))
			time.Sleep(time.Second)
			s.replace(t, web(i+1)) // without the user i, with i+2
			time.Sleep(2 * checkEvery)
			if got := serial.Load(); got != s.version {
				t.Errorf("rotation %d: the certificate is %d", i, got)
			}
		}
		cancel()
		all.Wait()
		if n := scrapes.Load(); n < rotations*40 {
			t.Errorf("%d scrapes", n)
		}
		_ = server.Close()
		time.Sleep(10 * time.Second) // crypto/tls's close_notify has 5 s
	})
}

// A file that is replaced while it is read is read again.
func TestChangeDuringARead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yml")
	header := func(v string) string { return "http_server_config: {headers: {X-Frame-Options: " + v + "}}\n" }
	write(t, file, header("first"))
	files := &replacing{Reader: regularfile.New(time.Minute)}
	f, err := Load(t.Context(), file, files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	files.after = func() { // the read has the old text
		files.after = nil
		write(t, file+".new", header("third"))
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(t, file+".new", header("secnd"))
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		f.checked = time.Time{}
		f.current()
	}
	if d, _ := f.current(); d.HTTP.Headers["X-Frame-Options"] != "third" {
		t.Errorf("in force: %v", d.HTTP.Headers)
	}
}

// replacing calls after once it has read a file.
type replacing struct {
	*regularfile.Reader
	after func()
}

func (r *replacing) Read(ctx context.Context, path string, limit int64) ([]byte, error) {
	b, err := r.Reader.Read(ctx, path, limit)
	if r.after != nil {
		r.after()
	}
	return b, err
}
