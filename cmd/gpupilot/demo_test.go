// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

func TestDemo(t *testing.T) {
	out, in := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := run(t.Context(), []string{"demo", "--speed", "3600"}, in)
		_ = in.Close()
		done <- err
	}()
	var text strings.Builder
	pages := 0
	for lines := bufio.NewScanner(out); lines.Scan(); {
		text.WriteString(lines.Text() + "\n")
		_, address, ok := strings.Cut(lines.Text(), " http://")
		if !ok {
			continue
		}
		for path, want := range map[string]string{"": "GPUPilot demo", "static/page.css": "--bg", "demo.js": "uPlot", "state.json": `"contestants"`} {
			resp, err := http.Get("http://" + address + path)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK || !strings.Contains(string(body), want) || resp.Header.Get("Content-Security-Policy") == "" {
				t.Errorf("/%s: %s, %v, %.100s", path, resp.Status, resp.Header, body)
			}
			pages++
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if pages != 4 || !strings.Contains(text.String(), "\n08:30 ") {
		t.Errorf("%d pages, and it printed\n%s", pages, text.String())
	}
	// README shows the summary of the same hour.
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(text.String(), "requests.\n\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if table == "" || !strings.Contains(string(readme), table) {
		t.Errorf("README does not show this summary:\n%s", table)
	}
}

func TestDemoRefuses(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		err := run(t.Context(), append([]string{"demo"}, args...), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", args, err, want)
		}
	}
	f("--load: no load \"noon\"; there are morning, lunch, evening", "--load", "noon")
	f("--speed is -1", "--speed", "-1")
	f("--speed is NaN", "--speed", "NaN")
	f("--gpu-price is -2", "--gpu-price", "-2")
	f("--listen", "--listen", "127.0.0.1:99999")
}
