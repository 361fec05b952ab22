// SPDX-License-Identifier: Apache-2.0

package webconfig

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gpupilot/gpupilot/internal/base/bearer"
)

const (
	// maxFile limits a web configuration, a certificate and a key, in bytes.
	maxFile = 1 << 20
	// checkEvery is the shortest time between two checks of the files.
	checkEvery = time.Second
	// checkPatience is how long the request that starts a check waits for it,
	// so that the request gets the current configuration. A hung file system
	// delays that request by this time, and no other.
	checkPatience = 100 * time.Millisecond
)

// Files reads a regular file. A file that hangs is an error.
type Files interface {
	Read(ctx context.Context, path string, limit int64) ([]byte, error)
}

// File is a web configuration file.
type File struct {
	path      string
	files     Files
	log       *slog.Logger
	passwords *passwords

	mu       sync.Mutex
	doc      *document
	tls      *tls.Config   // nil: plain HTTP
	checked  time.Time     // when the last check began
	checking chan struct{} // closed when the running check ends; nil: no check is running

	// Used by the running check only, and by Load before the first check.
	stamps  []stamp
	failing string // the error that was logged last
}

// stamp identifies a version of a file.
type stamp struct {
	path string
	info os.FileInfo // nil: the file could not be found
}

func stampOf(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		info = nil
	}
	return stamp{path, info}
}

// current reports whether the file is still the same. The time and the size are not
// enough: files that are replaced by others, as in a mounted Secret, can have the same.
func (s stamp) current() bool {
	now := stampOf(s.path).info
	if s.info == nil || now == nil {
		return s.info == nil && now == nil
	}
	return os.SameFile(s.info, now) && s.info.ModTime().Equal(now.ModTime()) && s.info.Size() == now.Size()
}

// Load reads a file. It returns the file's errors; errors after a later change
// are logged.
func Load(ctx context.Context, path string, files Files, log *slog.Logger) (*File, error) {
	f := &File{path: path, files: files, log: log, passwords: newPasswords()}
	doc, conf, err := f.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("web configuration %s: %w", path, err)
	}
	f.doc, f.tls = doc, conf
	return f, nil
}

// read reads the file and the files that it names, and stores their stamps. Each stamp is
// of before the file is read, so that a change in the meantime is noticed.
func (f *File) read(ctx context.Context) (*document, *tls.Config, error) {
	stamps := []stamp{stampOf(f.path)}
	text, err := f.files.Read(ctx, f.path, maxFile)
	if err != nil {
		return nil, nil, err
	}
	doc, err := parse(text, filepath.Dir(f.path))
	if err != nil {
		return nil, nil, err
	}
	for _, path := range []string{doc.TLS.CertFile, doc.TLS.KeyFile, doc.TLS.ClientCAs} {
		if path != "" {
			stamps = append(stamps, stampOf(path))
		}
	}
	conf, err := doc.config(func(path string) ([]byte, error) { return f.files.Read(ctx, path, maxFile) })
	if err != nil {
		return nil, nil, err
	}
	f.stamps = stamps
	return doc, conf, nil
}

// current returns the configuration in force. It starts a check of the files at
// most once in checkEvery, in a separate goroutine. A hung file leaves the last
// configuration in force and does not delay requests for long.
func (f *File) current() (*document, *tls.Config) {
	if looking := f.look(time.Now()); looking != nil {
		patience := time.NewTimer(checkPatience)
		defer patience.Stop()
		select {
		case <-looking:
		case <-patience.C:
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.doc, f.tls
}

// look starts a check of the files if one is due, and returns a channel that is
// closed at its end; nil if it started none.
func (f *File) look(now time.Time) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.checking != nil || now.Sub(f.checked) <= checkEvery {
		return nil
	}
	f.checked = now
	looking := make(chan struct{})
	f.checking = looking
	go func() {
		defer close(looking)
		f.reread()
		f.mu.Lock()
		defer f.mu.Unlock()
		f.checking = nil
	}()
	return looking
}

// reread applies changed files. TLS cannot be turned on or off without a
// restart.
func (f *File) reread() {
	if !f.changed() {
		return
	}
	doc, conf, err := f.read(context.Background()) // Files has a deadline
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && (conf == nil) != (f.tls == nil) {
		err = fmt.Errorf("turning TLS on or off needs a restart")
	}
	switch {
	case err != nil && err.Error() != f.failing:
		f.failing = err.Error()
		f.log.Warn("cannot reload the web configuration; the last one stays in force", "file", f.path, "err", err)
	case err == nil:
		f.doc, f.tls, f.failing = doc, conf, ""
		f.log.Info("web configuration reloaded", "file", f.path)
	}
}

func (f *File) changed() bool {
	return slices.ContainsFunc(f.stamps, func(s stamp) bool { return !s.current() })
}

// TLS returns the server's TLS configuration; nil for plain HTTP.
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

// Users reports whether the file requires a user and a password.
func (f *File) Users() bool {
	d, _ := f.current()
	return len(d.Users) > 0
}

// Wrap adds the file's authentication and response headers to h.
func (f *File) Wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d, _ := f.current()
		for k, v := range d.HTTP.Headers {
			w.Header().Set(k, v)
		}
		if len(d.Users) > 0 {
			user, password, given := r.BasicAuth()
			if !given || !f.passwords.check(r.Context(), bearer.SourceOf(r.RemoteAddr), d.Users, user, password) {
				w.Header().Set("WWW-Authenticate", "Basic")
				http.Error(w, "Unauthorized", http.StatusUnauthorized)
				return
			}
		}
		h.ServeHTTP(w, r)
	})
}
