// SPDX-License-Identifier: Apache-2.0

package adopt

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"
)

// interval is the time between two looks at objects that are waited for.
const interval = time.Second

// step changes the cluster by at most one request, or waits.
type step struct {
	text    string
	missing string                      // of a step that waits: what is missing
	do      func(context.Context) error // nil: wait
}

// plan returns the steps that are left, by what the API server has now; none: it is done.
type plan func(context.Context) ([]step, error)

// runner prints steps, and takes them.
type runner struct {
	out     io.Writer
	timeout time.Duration // of a step
	n       int           // steps that were printed
}

// print writes a line. Texts of objects may have been written by anybody.
func (r *runner) print(format string, args ...any) {
	fmt.Fprint(r.out, strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' {
			return '?'
		}
		return c
	}, fmt.Sprintf(format, args...)))
}

func (r *runner) printStep(s step) {
	r.n++
	r.print("%d. %s\n", r.n, s.text)
}

// list prints all steps of a plan.
func (r *runner) list(steps []step) {
	for _, s := range steps {
		r.printStep(s)
	}
}

// run takes the first step of the plan until there is none. The plan is made again after
// each step, so that a run continues wherever another one ended.
func (r *runner) run(ctx context.Context, p plan) error {
	now := "" // the step
	began := time.Now()
	for first := true; ; first = false {
		steps, err := p(ctx)
		switch {
		case err == nil && len(steps) == 0:
			return nil
		case err != nil && (first || isFinal(err)):
			return err
		}
		missing, isNew := err, false
		if err == nil {
			s := steps[0]
			if isNew = s.text != now; isNew {
				now, began = s.text, time.Now()
				r.printStep(s)
			}
			if missing = s.take(ctx); isFinal(missing) {
				return fmt.Errorf("%s: %w", s.text, missing)
			}
		}
		if missing == nil && isNew {
			continue
		}
		if time.Since(began) >= r.timeout {
			return fmt.Errorf("%s: not done within %v: %w", now, r.timeout, cmp.Or(missing, errNoEffect))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
}

// errNoEffect is about a step whose request was accepted, after which it is still to be taken.
var errNoEffect = errors.New("the API server accepted it, and nothing changed")

// take takes a step. The error of one that waits says what is missing.
func (s step) take(ctx context.Context) error {
	if s.do == nil {
		return errors.New(s.missing)
	}
	return s.do(ctx)
}
