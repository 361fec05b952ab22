// SPDX-License-Identifier: Apache-2.0

//go:build !race

package journeys

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/gpupilot/gpupilot/test/stack"
)

// The controller's page, in a browser, shows a workload that scales, and says why in the words of its status.
func TestPage(t *testing.T) {
	t.Parallel()
	const name = "page"
	b := openBrowser(t)
	rig.Offer(name, 0.3)
	rig.Deploy(t, name, 1, time.Second)
	rig.Autoscale(t, name, nil)
	if err := chromedp.Do(b, chromedp.Navigate(rig.ControllerURL)); err != nil {
		t.Fatal(err)
	}
	text := func() (string, error) {
		return chromedp.Run(b, chromedp.Evaluate[string](`document.querySelector('.workload[data-key="`+namespace+`/`+name+`"]')?.innerText ?? ""`))
	}
	shows := func(wants ...string) {
		t.Helper()
		stack.Eventually(t, func() error {
			row, err := text()
			if err != nil {
				return err
			}
			for _, want := range wants {
				if !strings.Contains(row, want) {
					return fmt.Errorf("the row does not show %q:\n%s", want, row)
				}
			}
			return nil
		})
	}
	shows(name)
	rig.Offer(name, 0.95)
	rig.WantReplicas(t, name, "2", func(n int32) bool { return n == 2 })
	rig.Measured(t, name, 2)
	stack.Eventually(t, func() error { // both change each second
		row, err := text()
		if err != nil {
			return err
		}
		d := rig.Status(t, name).LastDecision
		if why := strings.SplitAfter(d.Steps[len(d.Steps)-1].Message, ":")[0]; !strings.Contains(row, why) {
			return fmt.Errorf("the row does not say %q:\n%s", why, row)
		}
		return nil
	})
}

// openBrowser opens a browser's tab until the test ends, or skips the test where there is none.
func openBrowser(t *testing.T) context.Context {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("GPUPILOT_REQUIRE_CHROMIUM") == "1" {
			t.Fatal("GPUPILOT_REQUIRE_CHROMIUM is 1 and no chromium is in PATH")
		}
		t.Skip("no chromium in PATH: Debian's package chromium has it")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.WSURLReadTimeout(stack.Patience))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	return ctx
}
