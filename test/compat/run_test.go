// SPDX-License-Identifier: Apache-2.0

package compat

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/crypto/bcrypt"
	certutil "k8s.io/client-go/util/cert"

	"github.com/gpupilot/gpupilot/test/agentrig"
)

// password is that of the scenario with a password.
const password = "a long secret"

// finding is what a scenario found.
type finding struct {
	scenario string
	difference
}

func (h *harness) compare(ctx context.Context, out io.Writer) error {
	only, err := regexp.Compile(h.cfg.only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	var found []finding
	ran := 0
	for i, s := range scenarios() {
		if !only.MatchString(s.name) {
			continue
		}
		if why := h.cannot(s); why != "" {
			fmt.Fprintf(out, "skipped: %s: %s\n", s.name, why)
			continue
		}
		differences, err := h.scenario(ctx, s, filepath.Join(h.dir, strconv.Itoa(i)))
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		ran++
		for _, d := range differences {
			found = append(found, finding{s.name, d})
		}
	}
	if ran == 0 {
		return fmt.Errorf("-only %q matches no scenario that can be run", h.cfg.only)
	}
	return report(out, ran, found, h.version, h.cfg.verbose)
}

// cannot says why a scenario cannot be had with this exporter and library.
func (h *harness) cannot(s scenario) string {
	for _, name := range s.flags() {
		if !h.knows(name) && name != "no-such-flag" {
			return "this exporter has no --" + name
		}
	}
	if s.cluster {
		if why := cannotJoin(); why != "" {
			return why
		}
	}
	if n := number(h.version); n > 0 && n < number(s.since) {
		return "this exporter is older than " + s.since
	}
	if _, err := os.Stat(h.cfg.collectors); s.csv == "" && err != nil {
		return "give the exporter's default collectors file with -collectors: " + err.Error()
	}
	if !h.fake && (s.name != "default collectors" && !slices.Equal(s.state, busy)) {
		return "it needs our fake library"
	}
	return ""
}

// scenario runs both programs, and compares.
func (h *harness) scenario(ctx context.Context, s scenario, dir string) ([]difference, error) {
	n, err := prepare(s, dir)
	if err != nil {
		return nil, err
	}
	defer n.stop()
	theirs, ours, err := h.startBoth(ctx, s, n)
	if err != nil {
		return nil, err
	}
	c := &comparison{values: h.fake}
	c.add(kindStart, "program", theirs.state(), ours.state(), theirs.tail())
	if theirs.Running() && ours.Running() {
		err = h.observe(ctx, c, s, dir, theirs, ours)
	}
	t, o := theirs.stop(syscall.SIGTERM), ours.stop(syscall.SIGTERM)
	if len(c.found) == 0 || c.found[0].kind != kindStart {
		c.add(kindStop, "program", t, o, "")
	}
	if err != nil {
		return nil, fmt.Errorf("%w\ntheirs said:\n%s\nours said:\n%s", err, theirs.tail(), ours.tail())
	}
	return c.found, nil
}

func (h *harness) startBoth(ctx context.Context, s scenario, n *node) (theirs, ours *program, err error) {
	dir := n.dir
	args := []string{"-c", strconv.FormatInt(h.cfg.interval.Milliseconds(), 10)}
	theirArgs := append(slices.Clone(args), "-f", h.cfg.collectors)
	if s.csv != "" {
		args = append(args, "-f", filepath.Join(dir, "collectors.csv"))
		theirArgs = args
	}
	more := replaced(s.args, dir)
	type result struct {
		p   *program
		err error
	}
	done := make(chan result, 1)
	go func() {
		p, err := h.start(ctx, h.cfg.exporter, slices.Concat(theirArgs, more), s, n)
		done <- result{p, err}
	}()
	ours, err = h.start(ctx, h.cfg.agent, slices.Concat(args, more), s, n)
	r := <-done
	if err = errors.Join(err, r.err); err != nil {
		for _, p := range []*program{r.p, ours} {
			if p != nil {
				p.stop(syscall.SIGKILL)
			}
		}
	}
	return r.p, ours, err
}

// start starts a program on the node that the scenario wants.
func (h *harness) start(ctx context.Context, path string, args []string, s scenario, n *node) (*program, error) {
	gpus := filepath.Join(n.dir, "gpus")
	env := slices.Concat([]string{
		"LD_LIBRARY_PATH=" + h.library, "GPUPILOT_FAKE_DCGM=" + gpus, "GPUPILOT_FAKE_NVML=" + gpus,
		"GPUPILOT_BACKEND=dcgm", "GPUPILOT_PROFILE=" + h.profile,
		agentrig.NoValidation,
	}, n.env, replaced(s.env, n.dir))
	return start(ctx, n.wrap, path, args, env, s.web)
}

func replaced(words []string, dir string) []string {
	out := slices.Clone(words)
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], "{dir}", dir)
	}
	return out
}

// observe asks both programs for what the scenario is about.
func (h *harness) observe(ctx context.Context, c *comparison, s scenario, dir string, theirs, ours *program) error {
	if len(s.later) > 0 {
		if err := h.change(ctx, s, dir, theirs); err != nil {
			return err
		}
	}
	if err := h.page(ctx, c, s, theirs, ours); err != nil {
		return err
	}
	for _, r := range s.requests {
		if err := both(ctx, c, r, theirs, ours); err != nil {
			return err
		}
	}
	if s.reload && theirs.Running() && ours.Running() {
		for _, p := range []*program{theirs, ours} {
			if err := p.Signal(syscall.SIGHUP); err != nil {
				return err
			}
			p.sleep(ctx, 4*h.cfg.interval)
			if err := p.AwaitAddress(ctx); err != nil {
				return err
			}
		}
		if err := h.page(ctx, c, s, theirs, ours); err != nil {
			return err
		}
	}
	c.add(kindStart, "after a while", theirs.state(), ours.state(), theirs.tail())
	return nil
}

// change lets the GPUs do what comes later, once both programs collect, and
// waits until they have seen it.
func (h *harness) change(ctx context.Context, s scenario, dir string, p *program) error {
	const some = 3 // intervals
	p.sleep(ctx, some*h.cfg.interval)
	path, lines := filepath.Join(dir, "gpus"), strings.Join(slices.Concat(s.state, s.later), "\n")+"\n"
	if err := os.WriteFile(path+".new", []byte(lines), 0o600); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	p.sleep(ctx, some*h.cfg.interval)
	return ctx.Err()
}

// page compares /metrics once it has come to rest.
func (h *harness) page(ctx context.Context, c *comparison, s scenario, theirs, ours *program) error {
	r := s.page
	if r.path == "" {
		r.path = "/metrics"
	}
	wait := h.cfg.interval + h.cfg.interval/5 // so that a tick lies between two requests
	t, err := theirs.settled(ctx, r, wait)
	if err != nil {
		return err
	}
	o, err := ours.settled(ctx, r, wait)
	if err != nil {
		return err
	}
	if !theirs.Running() || !ours.Running() {
		return nil
	}
	c.answers(r, t, o)
	c.pages(parsePage(t.body), parsePage(o.body))
	return nil
}

func both(ctx context.Context, c *comparison, r request, theirs, ours *program) error {
	t, errT := theirs.ask(ctx, r)
	o, errO := ours.ask(ctx, r)
	if errT != nil || errO != nil {
		c.add(kindStatus, r.String(), fmt.Sprint(errT), fmt.Sprint(errO), "")
		return ctx.Err()
	}
	c.answers(r, t, o)
	return nil
}

// comparedHeaders are those that mean something to who asks.
var comparedHeaders = []string{"Content-Type", "Content-Encoding", "X-Content-Type-Options", "Www-Authenticate", "Allow", "Location"}

func (c *comparison) answers(r request, t, o answer) {
	name := r.String()
	c.add(kindStatus, name, strconv.Itoa(t.status), strconv.Itoa(o.status), "")
	if t.status != o.status {
		return
	}
	for _, h := range comparedHeaders {
		c.add(kindHeader, h, strings.Join(t.header.Values(h), ", "), strings.Join(o.header.Values(h), ", "), name)
	}
	if r.body {
		c.add(kindBody, name, t.body, o.body, "")
	}
}

// webFiles adds a web configuration, a certificate and its key.
func webFiles(files map[string]string, dir string) error {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		return err
	}
	cert, key, err := certutil.GenerateSelfSignedCertKey("localhost", nil, nil)
	if err != nil {
		return err
	}
	files[filepath.Join(dir, "tls.crt")], files[filepath.Join(dir, "tls.key")] = string(cert), string(key)
	files[filepath.Join(dir, "web.yml")] = "tls_server_config: {cert_file: tls.crt, key_file: tls.key}\nbasic_auth_users: {prometheus: " + string(hash) + "}\n"
	return nil
}
