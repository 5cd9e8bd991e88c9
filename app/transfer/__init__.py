"""What a hub, a package index or an address has, and how a file of it is brought here and checked.

Each source makes a `plan.Plan`; `download.Download` brings one file of it. Knows settings; no catalogue,
no person, and nothing here is printed.
"""
