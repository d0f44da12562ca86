// Command generated asks a weir service through the client that oapi-codegen
// has generated from openapi.yaml. It exits with 1 if an answer isn't what it
// has to be.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"generated/weir"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run needs a policy api that admits one of each client per minute.
func run(ctx context.Context, url string) error {
	c, err := weir.NewClientWithResponses(url)
	if err != nil {
		return err
	}
	var wrong error
	expect := func(what string, ok bool, response any) {
		if wrong == nil && !ok {
			wrong = fmt.Errorf("%s: %+v", what, response)
		}
	}
	const client = "a/b c"
	question := weir.Check{Policy: "api", Client: client} // no cost: 1

	admitted, err := c.CheckWithResponse(ctx, question)
	if err != nil {
		return err
	}
	expect("admitted", admitted.JSON200 != nil && admitted.JSON200.Allowed && admitted.JSON200.Limits[0].Remaining == 0, admitted)
	denied, err := c.CheckWithResponse(ctx, question)
	if err != nil {
		return err
	}
	expect("denied", denied.JSON429 != nil && denied.JSON429.RetryAfter > 0, denied)
	unknown, err := c.CheckWithResponse(ctx, weir.Check{Policy: "none", Client: client})
	if err != nil {
		return err
	}
	expect("unknown", unknown.ApplicationproblemJSON404 != nil && unknown.ApplicationproblemJSON404.Detail != "", unknown)

	nothing := int(0)
	batch, err := c.CheckBatchWithResponse(ctx, weir.Batch{Checks: []weir.Check{
		{Policy: "api", Client: client, Cost: &nothing}, {Policy: "none", Client: client},
	}})
	if err != nil {
		return err
	}
	expect("batch", batch.JSON200 != nil && len(batch.JSON200.Results) == 2, batch)
	if wrong == nil {
		first, err := batch.JSON200.Results[0].AsResult()
		expect("result", err == nil && first.Allowed && first.Status == 200, first)
		second, err := batch.JSON200.Results[1].AsProblem()
		expect("problem", err == nil && second.Status == http.StatusNotFound, second)
	}

	peek, err := c.PeekClientWithResponse(ctx, "api", client)
	if err != nil {
		return err
	}
	expect("peek", peek.JSON200 != nil && !peek.JSON200.Allowed, peek)
	reset, err := c.ResetClientWithResponse(ctx, "api", client)
	if err != nil {
		return err
	}
	expect("reset", reset.StatusCode() == http.StatusNoContent, reset)
	peek, err = c.PeekClientWithResponse(ctx, "api", client)
	if err != nil {
		return err
	}
	expect("peek after reset", peek.JSON200 != nil && peek.JSON200.Allowed, peek)
	policies, err := c.ListPoliciesWithResponse(ctx)
	if err != nil {
		return err
	}
	expect("policies", policies.JSON200 != nil && policies.JSON200.Policies[0].Name == "api", policies)
	return wrong
}
