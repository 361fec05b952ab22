// SPDX-License-Identifier: Apache-2.0

package webconfig

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/gpupilot/gpupilot/internal/base/regularfile"
)

// certificate writes a self-signed one for 127.0.0.1 with this serial number.
func certificate(t *testing.T, dir string, serial int64) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "agent"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, &c, &c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "tls.crt"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, filepath.Join(dir, "tls.key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})))
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, file string) (*File, error) {
	t.Helper()
	return Load(t.Context(), file, regularfile.New(time.Minute), slog.New(slog.DiscardHandler))
}

func hash(t *testing.T, password string) string {
	t.Helper()
	h, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	return string(h)
}

func TestServing(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, 1)
	file := filepath.Join(dir, "web.yml")
	const text = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n  min_version: TLS13\n" +
		"http_server_config:\n  headers:\n    X-Frame-Options: deny\nbasic_auth_users:\n  prom: %s\n"
	write(t, file, fmt.Sprintf(text, hash(t, "right")))
	f, err := load(t, file)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: f.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") }))}
	go func() { _ = s.Serve(tls.NewListener(l, f.TLS())) }()
	t.Cleanup(func() { _ = s.Close() })

	ask := func(user, password string) (*http.Response, error) {
		c := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // the certificate is looked at below
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if user != "" {
			req.SetBasicAuth(user, password)
		}
		res, err := c.Do(req)
		if err == nil {
			_ = res.Body.Close()
		}
		return res, err
	}
	status := func(user, password string, want int) *http.Response {
		t.Helper()
		res, err := ask(user, password)
		if err != nil || res.StatusCode != want {
			t.Fatalf("%s %s: %v, %v, want %d", user, password, res, err, want)
		}
		return res
	}
	status("", "", http.StatusUnauthorized)
	status("prom", "wrong", http.StatusUnauthorized)
	status("nobody", "right", http.StatusUnauthorized)
	for range 3 {
		res := status("prom", "right", http.StatusOK)
		if res.TLS.Version != tls.VersionTLS13 || res.Header.Get("X-Frame-Options") != "deny" || res.TLS.PeerCertificates[0].SerialNumber.Int64() != 1 {
			t.Errorf("%+v", res.TLS)
		}
	}
	// A renewed certificate and password, and then a file that is wrong.
	f.checked = time.Time{}
	certificate(t, dir, 2)
	write(t, file, fmt.Sprintf(text, hash(t, "renewed!")))
	if res := status("prom", "renewed!", http.StatusOK); res.TLS.PeerCertificates[0].SerialNumber.Int64() != 2 {
		t.Error("the certificate is the old one")
	}
	status("prom", "right", http.StatusUnauthorized)
	f.checked = time.Time{}
	write(t, file, "basic_auth_users: [")
	status("prom", "renewed!", http.StatusOK)
}

// hanging are files of which those in hung do not answer.
type hanging struct {
	*regularfile.Reader
	hung   chan struct{} // closed: they answer again
	asked  atomic.Int32  // reads since
	hanged atomic.Bool
}

func (h *hanging) Read(ctx context.Context, path string, limit int64) ([]byte, error) {
	if h.hanged.Load() {
		h.asked.Add(1)
		<-h.hung
	}
	return h.Reader.Read(ctx, path, limit)
}

// A file that hangs costs one request checkPatience, and changes nothing until
// it answers. A FIFO costs nothing.
func TestFilesThatHang(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "web.yml")
	write(t, file, "http_server_config: {headers: {X-Frame-Options: deny}}\n")
	synctest.Test(t, func(t *testing.T) {
		files := &hanging{Reader: regularfile.New(time.Minute), hung: make(chan struct{})}
		f, err := Load(t.Context(), file, files, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		h := f.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		ask := func(want string, took time.Duration) {
			t.Helper()
			start, w := time.Now(), httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
			if got := w.Header().Get("X-Frame-Options"); got != want || time.Since(start) != took {
				t.Errorf("%q after %v, want %q after %v", got, time.Since(start), want, took)
			}
		}
		later := func() { time.Sleep(2 * checkEvery) }
		ask("deny", 0)
		files.hanged.Store(true)
		write(t, file, "http_server_config: {headers: {X-Frame-Options: sameorigin}}\n")
		later()
		ask("deny", checkPatience)
		for range 3 {
			later()
			ask("deny", 0)
		}
		if n := files.asked.Load(); n != 1 {
			t.Errorf("%d reads of a file that hangs, want 1", n)
		}
		files.hanged.Store(false)
		close(files.hung)
		synctest.Wait()
		ask("sameorigin", 0)
		if err := errors.Join(os.Remove(file), syscall.Mkfifo(file, 0o600)); err != nil {
			t.Fatal(err)
		}
		later()
		ask("sameorigin", 0)
		if _, err := Load(t.Context(), file, files, nil); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("a FIFO at the start: %v", err)
		}
	})
}

func TestBadFiles(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, 1)
	file := filepath.Join(dir, "web.yml")
	f := func(text, want string) {
		t.Helper()
		write(t, file, text)
		if _, err := load(t, file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	const tlsPart = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n  "
	f("basic_auth_users:\n  a: plain\n", `"a"`)
	f("tls_server_config:\n  cert_file: none.crt\n  key_file: tls.key\n", "none.crt")
	f("tls_server_config:\n  cert_file: tls.crt\n", "key_file")
	f("tls_server_config:\n  cert_file: tls.key\n  key_file: tls.key\n", "tls_server_config")
	f(tlsPart+"min_version: SSL3\n", "SSL3")
	f(tlsPart+"cipher_suites: [NONE]\n", "cipher suite")
	f(tlsPart+"curve_preferences: [P1]\n", "P1")
	f(tlsPart+"client_auth_type: RequireAndVerifyClientCert\n", "client_ca_file")
	f(tlsPart+"client_ca_file: tls.crt\n", "client_auth_type")
	f(tlsPart+"client_allowed_sans: [a]\n", "client_allowed_sans")
	f("http_server_config:\n  headers:\n    Server: x\n", "Server")
	f("no_such_key: 1\n", "no_such_key")
	f("rate_limit:\n  interval: 1s\n", "rate_limit")
	if _, err := load(t, filepath.Join(dir, "none.yml")); err == nil {
		t.Error("a file that is not there was read")
	}
	write(t, file, "")
	got, err := load(t, file)
	if err != nil || got.TLS() != nil || got.Users() {
		t.Errorf("an empty file: %v", err)
	}
}

// An unknown user's password takes as long as a known one's.
func TestNobody(t *testing.T) {
	if c, err := bcrypt.Cost([]byte(nobody)); err != nil || c != bcrypt.DefaultCost || len(nobody) != 60 {
		t.Errorf("cost %d, %v", c, err)
	}
	if err := bcrypt.CompareHashAndPassword([]byte(nobody), []byte("")); err != bcrypt.ErrMismatchedHashAndPassword {
		t.Error(err)
	}
}

// Whatever the file holds, it is read or refused, and what is read can serve.
func FuzzParse(f *testing.F) {
	f.Add("tls_server_config:\n  cert_file: a\nbasic_auth_users:\n  a: b\n")
	f.Add("http_server_config: {http2: false}")
	f.Fuzz(func(t *testing.T, text string) {
		d, err := parse([]byte(text), "/dir")
		if err != nil {
			return
		}
		for name, h := range d.Users {
			if _, err := bcrypt.Cost([]byte(h)); err != nil {
				t.Errorf("user %q was read with hash %q", name, h)
			}
		}
		if p := d.TLS.CertFile; p != "" && !filepath.IsAbs(p) {
			t.Errorf("relative path %q", p)
		}
	})
}
