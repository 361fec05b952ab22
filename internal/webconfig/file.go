// SPDX-License-Identifier: Apache-2.0

package webconfig

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"
)

// maxKnown bounds the passwords that were found right and need no bcrypt.
const maxKnown = 64

// File is a web configuration file.
type File struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex
	doc     *document
	tls     *tls.Config // nil: plain HTTP
	stamps  []stamp
	checked time.Time
	failing string // the error that was logged last
	known   map[[sha256.Size]byte]bool
}

// stamp tells one version of a file from another.
type stamp struct {
	path string
	at   time.Time
	size int64
}

// Load reads a file. What is wrong in it is an error now; later, it is logged.
func Load(path string, log *slog.Logger) (*File, error) {
	f := &File{path: path, log: log, known: map[[sha256.Size]byte]bool{}}
	if err := f.read(); err != nil {
		return nil, fmt.Errorf("web configuration %s: %w", path, err)
	}
	return f, nil
}

func (f *File) read() error {
	text, err := os.ReadFile(f.path)
	if err != nil {
		return err
	}
	doc, err := parse(text, filepath.Dir(f.path))
	if err != nil {
		return err
	}
	stamps := stampsOf(f.path, doc.TLS.CertFile, doc.TLS.KeyFile, doc.TLS.ClientCAs)
	conf, err := doc.config()
	if err != nil {
		return err
	}
	f.doc, f.tls, f.stamps = doc, conf, stamps
	clear(f.known)
	return nil
}

func stampsOf(paths ...string) []stamp {
	var out []stamp
	for _, p := range paths {
		if p == "" {
			continue
		}
		s := stamp{path: p}
		if i, err := os.Stat(p); err == nil {
			s.at, s.size = i.ModTime(), i.Size()
		}
		out = append(out, s)
	}
	return out
}

// current gives what holds now, reading changed files at most once a second.
// TLS cannot be turned on or off without a restart.
func (f *File) current() (*document, *tls.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.Sub(f.checked) > time.Second {
		f.checked = now
		for _, s := range f.stamps {
			if stampsOf(s.path)[0] != s {
				f.reload()
				break
			}
		}
	}
	return f.doc, f.tls
}

func (f *File) reload() {
	was, wasTLS := f.doc, f.tls
	err := f.read()
	if err == nil && (f.tls == nil) != (wasTLS == nil) {
		f.doc, f.tls = was, wasTLS
		err = fmt.Errorf("TLS can be turned on or off by a restart only")
	}
	switch {
	case err != nil && err.Error() != f.failing:
		f.failing = err.Error()
		f.log.Warn("web configuration cannot be read again; the last one holds", "file", f.path, "err", err)
	case err == nil:
		f.failing = ""
		f.log.Info("web configuration was read again", "file", f.path)
	}
}

// TLS is what a server needs, nil where it is to speak plain HTTP.
func (f *File) TLS() *tls.Config {
	_, c := f.current()
	if c == nil {
		return nil
	}
	return &tls.Config{
		MinVersion: c.MinVersion, NextProtos: c.NextProtos,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			_, c := f.current()
			return c, nil
		},
	}
}

// Users says whether the file asks for a user and a password.
func (f *File) Users() bool {
	d, _ := f.current()
	return len(d.Users) > 0
}

// Wrap makes h ask for a user and a password, and sets the file's headers.
func (f *File) Wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := f.current()
		for k, v := range d.HTTP.Headers {
			w.Header().Set(k, v)
		}
		if len(d.Users) > 0 {
			user, password, _ := r.BasicAuth()
			if !f.right(d, user, password) {
				w.Header().Set("WWW-Authenticate", "Basic")
				http.Error(w, "Unauthorized", http.StatusUnauthorized)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}

// nobody is the hash that an unknown user's password is compared with, so that
// the answer takes as long as for a known one.
const nobody = "$2a$10$3ZQpd2OVpFUGNCKIMXhwvOl5LAB5cLUSXbqRQFt6PrqbVi0t7Xp0q"

// right compares a password with bcrypt, which is slow by intent, once; whoever
// scrapes each second is known after that.
func (f *File) right(d *document, user, password string) bool {
	hash, ok := d.Users[user]
	if !ok {
		hash = nobody
	}
	id := sha256.Sum256([]byte(hash + "\x00" + user + "\x00" + password))
	f.mu.Lock()
	known := f.known[id]
	f.mu.Unlock()
	if known {
		return ok
	}
	good := bcrypt.CompareHashAndPassword([]byte(hash), []byte(password)) == nil && ok
	if good {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.known) >= maxKnown {
			clear(f.known)
		}
		f.known[id] = true
	}
	return good
}
